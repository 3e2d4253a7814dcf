from pathlib import Path
from unittest.mock import Mock

import pytest

from services.chassis.log.consumer_groups import ROLLUPS_GROUP
from services.projector.settings import RollupsSettings
from services.projector.windows.rollups import make_app


def test_variables_of_the_surroundings_do_not_change_how_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "BROKER_URL": "amqp://another",
        "APP_VERSION": "2.1.3",
        "CONSUMER_AUTO_OFFSET_RESET": "latest",
    }.items():
        monkeypatch.setenv(name, value)
    settings = RollupsSettings(kafka_bootstrap_servers="broker-1:9092, broker-2:9092")
    app = make_app(settings, Mock())
    app.finalize()
    assert [str(url) for url in app.conf.broker] == ["kafka://broker-1:9092", "kafka://broker-2:9092"]
    assert (app.conf.id, app.conf.consumer_auto_offset_reset) == (ROLLUPS_GROUP, "earliest")
    monkeypatch.chdir(tmp_path)
    app._create_directories()
    assert list(tmp_path.iterdir()) == []
