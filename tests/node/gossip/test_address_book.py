"""Promises of the address book."""

from node.gossip.address_book import AddressBook
from node.links.network import PeerAddress
from protocol.ids import PeerId

OWN, A, B, RELAY = (PeerId(letter * 32) for letter in "oabr")


def test_relays_come_first_and_this_node_not_at_all() -> None:
    book = AddressBook(OWN)
    book.update({B: ("b:1",), OWN: ("own:1",), A: ("a:1", "a:2")}, {RELAY: ("relay:1",)})
    assert [address.peer_id for address in book.by_importance] == [RELAY, B, A]
    assert book.others == [A, B]


def test_an_update_replaces_all_entries() -> None:
    book = AddressBook(OWN)
    book.update({A: ("a:1",)}, {RELAY: ("relay:1",)})
    book.update({B: ("b:1",)}, {})
    assert book.by_importance == [PeerAddress(B, ("b:1",))]
    assert book.find(A) == PeerAddress(A, ())
    assert book.find(B) == PeerAddress(B, ("b:1",))
