"""The broker: stores messages and serves producers, consumers and tools.

`broker.py` starts and stops it, `services.py` builds its parts; each sub-folder is a capability.
"""

from cometmq.broker.base.config import BrokerConfig, load_config
from cometmq.broker.broker import Broker

__all__ = ["Broker", "BrokerConfig", "load_config"]
