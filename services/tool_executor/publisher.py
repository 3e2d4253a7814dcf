from services.chassis.catalog.publisher import Publisher as Publisher  # noqa: PLC0414
