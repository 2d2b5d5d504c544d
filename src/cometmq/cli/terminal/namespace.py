"""The option `--namespace`: the names on a command line are those of a program in a namespace.

Names on the command line become the cluster's before the command runs.  Listings and JSON show the
program's names.  Sentences, such as questions and errors, have the cluster's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cometmq.cli.terminal.values import NAME

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cometmq.client.base.namespace import Namespace

__all__ = ["CLUSTER_NAME", "namespace", "namespace_option"]

F = TypeVar("F", bound=Callable[..., Any])
_META: Final = "cometmq.namespace"


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    from cometmq.client.base.namespace import Namespace

    ctx.meta[_META] = Namespace(value)


def namespace_option(function: F) -> F:
    """Add `--namespace SPACE`, which is read before the names that it changes."""
    return click.option(
        "--namespace",
        type=NAME,
        metavar="SPACE",
        envvar="COMETMQ_NAMESPACE",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Name topics and groups as the programs of this namespace do.",
    )(function)


def namespace() -> "Namespace":
    """The namespace of the running command; without one its names stay as they are."""
    from cometmq.client.base.namespace import NO_NAMESPACE

    found: Namespace = click.get_current_context().meta.get(_META, NO_NAMESPACE)
    return found


class _ClusterName(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return namespace().wrap(NAME.convert(value, param, ctx))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """The cluster's topics or groups that begin with a text."""
        from click.shell_completion import CompletionItem

        from cometmq.cli.terminal.names import complete_names

        return [CompletionItem(name) for name in complete_names(ctx, param, incomplete)]


CLUSTER_NAME: Final = _ClusterName()
"""A topic or a group, which the command gets under the cluster's name."""
