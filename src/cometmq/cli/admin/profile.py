"""`cometmq profile`: names for several clusters, and which one commands use."""

import click

from cometmq.cli.terminal.options import done_option, json_option, set_up_logging
from cometmq.cli.terminal.values import NAME

__all__ = ["profile"]


@click.group(short_help="Names for several clusters, and which one commands use.")
def profile() -> None:
    """Give clusters names, and choose which one commands use.

    A command uses the profile that `cometmq --profile NAME` or COMETMQ_PROFILE names; without one
    NAMESRV_ADDR, and without that the profile that was chosen with `use`. With -n it uses no
    profile, so that no cluster gets another one's keys.
    """


@profile.command("list", short_help="All profiles.")
@json_option
@click.pass_context
def list_profiles(ctx: click.Context, as_json: bool) -> None:
    """List all profiles; the one that commands use is marked."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.cli.terminal.profiles import Profiles

    profiles = Profiles.load()
    print_listing(
        [
            {
                "profile": name,
                "in_use": name == profiles.current,
                "name_server": each.name_server,
                "access_key": each.access_key,
                "tls": each.tls,
            }
            for name, each in sorted(profiles.by_name.items())
        ],
        as_json=as_json,
        empty="no profiles; add one with: cometmq profile set NAME -n HOST:PORT",
    )


@profile.command("set", short_help="Add a profile, or replace one.")
@click.argument("name", type=NAME)
@click.option(
    "-n", "--name-server", type=NAME, required=True, metavar="HOST:PORT", help="Separated by ';'."
)
@click.option("--access-key", type=NAME, metavar="KEY", help="Sign requests as this account.")
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File with its secret, which only you may read.  [default: COMETMQ_SECRET_KEY]",
)
@click.option("--tls", type=click.Choice(("on", "off", "no-hostname", "insecure")), help="Use TLS.")
@click.option("--tls-ca", type=click.Path(dir_okay=False), help="PEM file of authorities.")
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="PEM file of a certificate.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="PEM file of its key.")
@done_option
@click.pass_context
def set_profile(ctx: click.Context, /, name: str, **options: str | None) -> None:
    """Add the profile NAME, or replace it. The first one is used at once.

    \b
    cometmq profile set test -n 10.0.0.1:9876
    cometmq profile set live -n 10.1.0.1:9876 --tls on --access-key ann --secret-file ann.secret
    """
    set_up_logging(ctx)
    from pathlib import Path

    from cometmq.cli.terminal.output import print_done
    from cometmq.cli.terminal.profiles import Profile, Profiles, read_secret

    profiles = Profiles.load()
    given = {key: value for key, value in options.items() if value is not None}
    for key in ("secret_file", "tls_ca", "tls_cert", "tls_key"):
        if key in given:
            # Commands run in other folders.
            given[key] = str(Path(given[key]).expanduser().absolute())
    if "secret_file" in given:
        read_secret(given["secret_file"])
    profiles.by_name[name] = Profile(**given)
    profiles.current = profiles.current or name
    profiles.save()
    is_used = profiles.current == name
    print_done(
        f"profile {name}: {given['name_server']}" + ", in use" * is_used,
        is_note=True,
        profile=name,
        in_use=is_used,
    )


@profile.command("use", short_help="Choose the profile that commands use.")
@click.argument("name", type=NAME)
@done_option
@click.pass_context
def use_profile(ctx: click.Context, name: str) -> None:
    """Let commands use the profile NAME from now on."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.cli.terminal.profiles import Profiles

    profiles = Profiles.load()
    each = profiles.named(name)
    profiles.current = name
    profiles.save()
    text = f"profile {name}: {each.name_server}, in use"
    print_done(text, is_note=True, profile=name, in_use=True)


@profile.command("remove", short_help="Forget a profile.")
@click.argument("name", type=NAME)
@done_option
@click.pass_context
def remove_profile(ctx: click.Context, name: str) -> None:
    """Forget the profile NAME; if commands used it, they use none now."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.cli.terminal.profiles import Profiles

    profiles = Profiles.load()
    profiles.named(name)
    del profiles.by_name[name]
    if profiles.current == name:
        profiles.current = ""
    profiles.save()
    print_done(f"profile {name}: removed", is_note=True, profile=name, in_use=False)
