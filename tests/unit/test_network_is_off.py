import asyncio
import socket

import pytest


def test_a_connection_fails_the_test() -> None:
    with socket.socket() as client, pytest.raises(AssertionError, match="use no network"):
        client.connect(("127.0.0.1", 9))


async def test_so_does_one_of_asyncio() -> None:
    with pytest.raises(AssertionError, match="use no network"):
        await asyncio.open_connection("127.0.0.1", 9)


def test_unix_sockets_are_free() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.send(b"x")
        assert right.recv(1) == b"x"
