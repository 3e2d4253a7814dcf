from services.chassis.catalog_publisher import Publisher as Publisher  # noqa: PLC0414
