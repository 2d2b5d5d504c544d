"""The page of outcomes says what servers answer today."""

from tests.access_outcomes import PAGE, page


def test_the_page_is_what_servers_answer() -> None:
    """`python -m tests.access_outcomes` writes it anew; read the difference before a commit."""
    assert page() == PAGE.read_text("utf-8")
