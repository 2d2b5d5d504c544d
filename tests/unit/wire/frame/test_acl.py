"""Signatures: of commands, of frames, and of prepared sends and pulls."""

from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.acl import (
    Credentials,
    SignedPullTemplate,
    SignedSendTemplate,
    is_signature_right,
)
from cometmq.wire.frame.framing import decode_frame

OURS = Credentials("our-key", "our-secret")


def test_a_signed_request_names_the_key_and_fits_the_secret() -> None:
    """A token travels only where there is one, and every change of a field shows."""
    command = RemotingCommand.request(105, {"topic": "T"}, b"body")
    OURS.sign_command(command)
    ext = command.ext_fields
    assert ext["AccessKey"] == "our-key"
    assert "SecurityToken" not in ext
    assert is_signature_right(ext, b"body", "our-secret")
    assert not is_signature_right(ext, b"body", "another")
    assert not is_signature_right({**ext, "topic": "U"}, b"body", "our-secret")

    Credentials("our-key", "our-secret", "a-token").sign_command(command)
    assert command.ext_fields["SecurityToken"] == "a-token"
    assert is_signature_right(command.ext_fields, b"body", "our-secret")


def test_an_encoded_frame_is_signed_as_its_command() -> None:
    """Opaque and body stay."""
    frame = OURS.sign_frame(encode_command(RemotingCommand.request(34, {}, b"b", opaque=7)))
    signed = decode_frame(frame)
    assert (signed.code, signed.opaque, signed.body) == (34, 7, b"b")
    assert is_signature_right(signed.ext_fields, b"b", "our-secret")


def test_prepared_sends_and_pulls_are_signed_too() -> None:
    """The fields are those of the plain templates."""
    send = SignedSendTemplate(OURS, "pg", "T", "broker-a", is_reply=True)
    command = decode_frame(send.encode(1, 2, 0, 5, 0, "", b"body"))
    assert command.code == 325
    assert is_signature_right(command.ext_fields, b"body", "our-secret")
    pull = SignedPullTemplate(OURS, "g", "T", 3)
    command = decode_frame(pull.encode(2, 100, 32, 2, 0, 15_000, 0))
    assert "subscription" not in command.ext_fields
    assert is_signature_right(command.ext_fields, b"", "our-secret")
