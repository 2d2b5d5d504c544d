"""The name server: brokers register their topics here, and clients ask where a topic is.

It also keeps small texts by namespace and key, and its own configuration.
"""

from cometmq.namesrv.config import NameServerConfig, load_name_server_config
from cometmq.namesrv.name_server import NameServer

__all__ = ["NameServer", "NameServerConfig", "load_name_server_config"]
