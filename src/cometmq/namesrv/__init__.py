"""Route registration and lookup, wiring, configuration and process entry of the name server."""

from cometmq.namesrv.config import NameServerConfig, load_name_server_config
from cometmq.namesrv.name_server import NameServer, serve

__all__ = ["NameServer", "NameServerConfig", "load_name_server_config", "serve"]
