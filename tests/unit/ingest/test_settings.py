import pytest

from services.ingest.settings import IngestSettings, UnsafeSettingsError, is_loopback, require_safe


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    require_safe(IngestSettings(ingest_auth="dev", ingest_host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", ""])
def test_dev_mode_is_refused_where_others_can_reach_it(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UnsafeSettingsError, match="threadlog keys create"):
        require_safe(IngestSettings(ingest_auth="dev", ingest_host=host))
    require_safe(IngestSettings(ingest_auth="keys", ingest_host=host))


def test_dev_mode_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THREADLOG_INGEST_AUTH", raising=False)
    assert IngestSettings().ingest_auth == "keys"
