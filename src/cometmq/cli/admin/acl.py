"""`cometmq acl`: the users of a cluster, what they may do, and which entry decides."""

import os
from typing import Any

import click

from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import (
    admin_client,
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

__all__ = ["acl"]

PASSWORD_VARIABLE = "COMETMQ_USER_PASSWORD"  # noqa: S105 - a name, not a password
_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


@click.group(short_help="Users, what they may do, and which entry decides.")
def acl() -> None:
    """Users of a cluster, what they may do, and which entry decides.

    Each server has its own accounts; changes go to every broker, and to name servers that check
    requests. The commands need authenticationEnabled=true at the brokers, and the account of a
    super user: --access-key with COMETMQ_SECRET_KEY.
    """


@acl.group(short_help="List, create, change and delete users.")
def user() -> None:
    """List, create, change and delete users."""


@user.command("list", short_help="All users, without their passwords.")
@click.argument("name_part", required=False, default="")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def list_users(
    ctx: click.Context, name_part: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List the users whose names contain NAME_PART (default: all)."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.access import user_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await user_rows(admin, name_part)

    print_listing(run(collect()), as_json=as_json, empty="no such user")


@user.command("set", short_help="Create a user, or change one.")
@click.argument("name", type=NAME)
@click.option("--password", "asks_password", is_flag=True, help="Ask for a new password.")
@click.option("--super/--normal", "is_super", default=None, help="May do everything, or not.")
@click.option("--enable/--disable", "is_enabled", default=None, help="May sign in, or not.")
@name_server_option
@timeout_option
@done_option
@click.pass_context
def set_user(
    ctx: click.Context,
    name: str,
    asks_password: bool,
    is_super: bool | None,
    is_enabled: bool | None,
    name_server: str,
    timeout_s: float,
) -> None:
    """Create the user NAME, or change what is given.

    A new user needs a password: from the variable COMETMQ_USER_PASSWORD, or with --password from
    the terminal. No option takes it, since other users see command lines.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    password = os.environ.get(PASSWORD_VARIABLE) or None
    if asks_password:
        password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)

    async def change() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.put_user(name, password=password, is_super=is_super, is_enabled=is_enabled)

    run(change())
    print_done(f"user {name}: done", is_note=True, user=name)


@user.command("delete", short_help="Delete a user and his policies.")
@click.argument("name", type=NAME)
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@name_server_option
@timeout_option
@done_option
@click.pass_context
def delete_user(
    ctx: click.Context, name: str, yes: bool, name_server: str, timeout_s: float
) -> None:
    """Delete the user NAME and his policies; his next request is refused."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    if not yes:
        confirm(f"Delete the user {name} with all policies?")

    async def change() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.delete_user(name)

    run(change())
    print_done(f"user {name}: deleted", is_note=True, user=name, deleted=True)


@acl.group(short_help="List, set and delete what users may do.")
def policy() -> None:
    """List, set and delete what users may do."""


@policy.command("list", short_help="The entries of all users.")
@click.argument("name_part", required=False, default="")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def list_policies(
    ctx: click.Context, name_part: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List the entries of the users whose names contain NAME_PART (default: all)."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.access import policy_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await policy_rows(admin, name_part)

    print_listing(run(collect()), as_json=as_json, empty="no policy")


@policy.command("set", short_help="Allow or deny a user something.")
@click.argument("name", type=NAME)
@click.argument("resource", type=NAME)
@click.argument("actions", nargs=-1, required=True, type=click.Choice(_ACTIONS))
@click.option("--deny", "is_denied", is_flag=True, help="Deny it; otherwise it is allowed.")
@click.option("--from", "ips", multiple=True, metavar="IP", help="Only from this address or net.")
@click.option("--default", "is_default", is_flag=True, help="For what no other entry decides.")
@name_server_option
@timeout_option
@done_option
@click.pass_context
def set_policy(
    ctx: click.Context,
    name: str,
    resource: str,
    actions: tuple[str, ...],
    is_denied: bool,
    ips: tuple[str, ...],
    is_default: bool,
    name_server: str,
    timeout_s: float,
) -> None:
    """Allow or deny the user NAME to do ACTIONS with RESOURCE; replaces his entry for RESOURCE.

    RESOURCE is *, or Topic, Group or Cluster with :name, :begin* or :*. The most exact entry
    decides; without one, the answer is no.

    \b
    cometmq acl policy set alice 'Topic:Orders*' Pub Sub
    cometmq acl policy set alice Group:billing Sub --from 10.0.0.0/8
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.core.access.policies import Entry
    from cometmq.net.loop import run

    decision = "Deny" if is_denied else "Allow"
    entry = {
        "resource": resource,
        "actions": list(actions),
        "sourceIps": list(ips),
        "decision": decision,
    }
    Entry.from_json(entry)  # says what is illegal before the first broker is asked
    kind = "Default" if is_default else "Custom"

    async def change() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.put_policies(name, [{"policyType": kind, "entries": [entry]}])

    run(change())
    text = f"user {name}: {resource} {decision.lower()}: {', '.join(actions)}"
    print_done(
        text,
        is_note=True,
        user=name,
        resource=resource,
        decision=decision,
        actions=list(actions),
        type=kind,
    )


@policy.command("delete", short_help="Take an entry of a user away.")
@click.argument("name", type=NAME)
@click.argument("resource", type=NAME)
@click.option("--default", "is_default", is_flag=True, help="An entry set with --default.")
@name_server_option
@timeout_option
@done_option
@click.pass_context
def delete_policy(
    ctx: click.Context,
    name: str,
    resource: str,
    is_default: bool,
    name_server: str,
    timeout_s: float,
) -> None:
    """Take the entry of the user NAME for RESOURCE away, written as `policy list` shows it."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    async def change() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            kind = "Default" if is_default else "Custom"
            await admin.delete_policies(name, resource=resource, policy_type=kind)

    run(change())
    text = f"user {name}: no entry for {resource}"
    print_done(text, is_note=True, user=name, resource=resource, deleted=True)


@acl.command("migrate", short_help="Take the accounts of a plain_acl.yml over.")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would be created, and create nothing.")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def migrate(
    ctx: click.Context,
    path: str,
    dry_run: bool,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Create users and policies of ACL 2.0 for the accounts of FILE, a plain_acl.yml of ACL 1.0.

    A user that exists is left as he is. White addresses of accounts go with their users; those for
    everybody are printed as the line that the servers' configuration needs.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.core.access.migration import migrated
    from cometmq.net.loop import run
    from cometmq.server.access.access import read_plain_accounts

    plain = read_plain_accounts(path)
    rows: list[dict[str, Any]] = []

    async def create() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            known = {each["username"] for each in await admin.users()}
            for name, account in plain.accounts.items():
                target = migrated(account)
                row = {
                    "user": name,
                    "type": "Super" if target.is_super else "Normal",
                    "entries": sum(len(each["entries"]) for each in target.policies),
                    "white": ",".join(account.white.texts),
                    "done": "exists" if name in known else "planned" if dry_run else "created",
                    "notes": "; ".join(target.notes),
                }
                if name not in known and not dry_run:
                    await admin.put_user(
                        name,
                        password=account.secret,
                        is_super=target.is_super,
                        white_addresses=",".join(account.white.texts) or None,
                    )
                    if target.policies:
                        await admin.put_policies(name, target.policies)
                rows.append(row)

    run(create())
    print_listing(rows, as_json=as_json, empty="the file has no accounts")
    if plain.white.texts:
        note(
            "for everybody from these addresses, write into the configuration of each broker and"
            f" name server: globalWhiteRemoteAddresses={','.join(plain.white.texts)}"
        )


@acl.command("explain", short_help="Whether a user may do something, and which entry decides.")
@click.argument("name", type=NAME)
@click.argument("resource", type=NAME)
@click.argument("action", type=click.Choice(_ACTIONS))
@click.option("--from", "ip", default="127.0.0.1", show_default=True, help="His address.")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def explain(
    ctx: click.Context,
    name: str,
    resource: str,
    action: str,
    ip: str,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Say whether the user NAME may do ACTION with RESOURCE, and which entry decides.

    The answer comes from the function by which brokers decide. Exit code 1 when he may not.

    \b
    cometmq acl explain alice Topic:Orders Pub
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.access import explain_access
    from cometmq.net.loop import run

    async def collect() -> dict[str, Any]:
        async with admin_client(name_server, timeout_s) as admin:
            return await explain_access(admin, name, resource, action, ip)

    row = run(collect())
    print_listing([row], as_json=as_json)
    return 0 if row["allowed"] else 1
