"""Paired pages, their passkeys, and proofs of approvals."""

from backburner.core.devices import Attempt, Challenge, Device, Pairing, Passkey
from backburner.store.ledger import Ledger
from contract.cases import NOW, Open, kinds

PAIRING = Pairing("pair_1", "hash", "Firefox", "127.0.0.1", "482913", NOW, NOW + 120_000)
DEVICE = Device("device_1", "Firefox", "hash", "cli", "127.0.0.1", NOW, NOW)
PASSKEY = Passkey("passkey_1", "device_1", "Key", "backburner.localhost", "abc", 0, "120394", NOW, NOW + 120_000)
CHALLENGE = Challenge("nonce", "device_1", "approve", "task_x", "f" * 64, "once", NOW + 60_000)


def paired(ledger: Ledger) -> None:
    ledger.devices.add_pairing(PAIRING)
    assert ledger.devices.accept_pairing("pair_1", DEVICE)


class DeviceContract:
    def test_a_home_keeps_its_identity(self, ledger: Ledger, open_ledger: Open) -> None:
        assert ledger.devices.home_id() == open_ledger().devices.home_id() != ""

    def test_a_page_is_paired_once(self, ledger: Ledger, open_ledger: Open) -> None:
        ledger.devices.add_pairing(PAIRING)
        assert ledger.devices.open_pairings(NOW) == [PAIRING] and ledger.devices.open_pairings(NOW + 120_000) == []
        assert ledger.devices.accept_pairing("pair_1", DEVICE)
        assert not open_ledger().devices.accept_pairing("pair_1", DEVICE._replace(device_id="device_2", credential_hash="other"))
        assert ledger.devices.open_pairings(NOW) == [] and kinds(ledger) == ["device_paired"]
        found = ledger.devices.pairing("pair_1")
        assert found is not None and found.device_id == "device_1" and ledger.devices.pairing("pair_2") is None

    def test_a_device_is_found_by_its_credential_until_it_is_revoked(self, ledger: Ledger) -> None:
        paired(ledger)
        ledger.devices.seen("device_1", NOW + 5)
        assert ledger.devices.device_by_credential("hash") == DEVICE._replace(seen_at=NOW + 5)
        assert ledger.devices.device_by_credential("other") is None
        assert ledger.devices.revoke_device("device_1", "cli", NOW + 9) and not ledger.devices.revoke_device("device_1", "cli", NOW + 10)
        assert [device.revoked_at for device in ledger.devices.devices()] == [NOW + 9]
        assert kinds(ledger) == ["device_paired", "device_revoked"]

    def test_a_passkey_is_confirmed_once_and_ends_with_its_device(self, ledger: Ledger) -> None:
        paired(ledger)
        ledger.devices.add_passkey(PASSKEY)
        ledger.devices.add_passkey(PASSKEY._replace(passkey_id="passkey_2"))
        assert [found.passkey_id for found in ledger.devices.passkeys()] == ["passkey_2"]  # it replaces one that was not confirmed
        assert not ledger.devices.activate_passkey("passkey_2", "cli", NOW + 120_000)
        assert ledger.devices.activate_passkey("passkey_2", "cli", NOW + 1) and not ledger.devices.activate_passkey("passkey_2", "cli", NOW)
        ledger.devices.passkey_used("passkey_2", 7, NOW + 3)
        (found,) = ledger.devices.passkeys()
        assert (found.is_active, found.sign_count, found.used_at) == (True, 7, NOW + 3)
        ledger.devices.revoke_device("device_1", "cli", NOW + 9)
        assert not ledger.devices.passkeys()[0].is_active

    def test_a_removed_passkey_is_kept_for_old_proofs(self, ledger: Ledger) -> None:
        paired(ledger)
        ledger.devices.add_passkey(PASSKEY)
        assert ledger.devices.remove_passkey("passkey_1", "web:device_1", NOW + 1)
        assert not ledger.devices.remove_passkey("passkey_1", "web:device_1", NOW + 2)
        assert [found.removed_at for found in ledger.devices.passkeys()] == [NOW + 1] and kinds(ledger)[-1] == "passkey_removed"

    def test_a_challenge_is_used_once(self, ledger: Ledger, open_ledger: Open) -> None:
        paired(ledger)
        ledger.proofs.add_challenge(CHALLENGE)
        assert open_ledger().proofs.use_challenge("nonce", NOW + 1) == CHALLENGE._replace(used_at=NOW + 1)
        assert ledger.proofs.use_challenge("nonce", NOW + 2) is None and ledger.proofs.use_challenge("unknown", NOW) is None

    def test_attempts_are_kept_with_their_outcome(self, ledger: Ledger) -> None:
        first = ledger.proofs.record_attempt(Attempt(NOW, "verified", "web:device_1", "task_x", "device_1", text="t", proof="{}"))
        second = ledger.proofs.record_attempt(Attempt(NOW + 1, "verified", "web:device_1", "task_y", "device_1"))
        ledger.proofs.record_attempt(Attempt(NOW + 2, "refused", "api", "task_x", reason="a token"))
        ledger.proofs.settle_attempt(first, "approved", None)
        ledger.proofs.settle_attempt(second, "refused", "it has changed")
        refused = ledger.proofs.attempts("refused", (NOW + 9, 0), 10)
        assert [(found.at, found.reason) for found in refused] == [(NOW + 2, "a token"), (NOW + 1, "it has changed")]
        assert [found.attempt_id for found in ledger.proofs.attempts("refused", (NOW + 2, refused[0].attempt_id), 10)] == [second]
        assert [found.at for found in ledger.proofs.attempts("refused", (NOW + 9, 0), 10, since=NOW + 2)] == [NOW + 2]
        assert len(ledger.proofs.attempts("refused", (NOW + 9, 0), 1)) == 1
        proof = ledger.proofs.proof_of("task_x")
        assert proof is not None and (proof.attempt_id, proof.text) == (first, "t") and ledger.proofs.proof_of("task_y") is None
        assert kinds(ledger) == ["approval_refused", "approval_refused"]
