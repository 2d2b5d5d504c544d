"""Request processors, long-poll parking, wiring, configuration and process entry of the broker."""

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig, load_config

__all__ = ["Broker", "BrokerConfig", "load_config"]
