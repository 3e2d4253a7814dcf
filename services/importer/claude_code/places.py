"""Where each record stands, by the hash of its uuid: as a dictionary, in a sixth of its memory."""

from array import array

SLOTS = 1 << 10
"""Slots of an empty table."""
EMPTY = 0
"""Value of a free slot. Places are stored plus one."""


class Places:
    """A hash table with open addressing: a hash stands in the first free slot from its own on. At most two thirds of
    the slots are taken.
    """

    def __init__(self) -> None:
        self._count = 0
        self._clear(SLOTS)

    def _clear(self, slots: int) -> None:
        self._hashes = array("q", bytes(8 * slots))
        self._places = array("i", bytes(4 * slots))
        """Plus one; EMPTY where there is none."""
        self._mask = slots - 1

    def put(self, key: int, place: int) -> int:
        """Return the place of the key: this one, unless it had one before. Places are not negative."""
        if 3 * self._count >= 2 * self._mask:
            self._grow()
        slot = self._slot(key)
        if self._places[slot] == EMPTY:
            self._hashes[slot], self._places[slot] = key, place + 1
            self._count += 1
        return self._places[slot] - 1

    def get(self, key: int) -> int:
        """Return the place of the key, or -1."""
        return self._places[self._slot(key)] - 1

    def _slot(self, key: int) -> int:
        """Return the slot of the key, or the free one where it belongs."""
        hashes, places, mask = self._hashes, self._places, self._mask
        slot = key & mask
        while places[slot] != EMPTY and hashes[slot] != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        """Double the slots."""
        hashes, places = self._hashes, self._places
        self._clear(2 * (self._mask + 1))
        for key, place in zip(hashes, places, strict=True):
            if place != EMPTY:
                slot = self._slot(key)
                self._hashes[slot], self._places[slot] = key, place
