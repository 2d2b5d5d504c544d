"""Request processors, long-poll parking, wiring, configuration and process entry of the broker."""

from cometmq.broker.base.config import BrokerConfig, load_config
from cometmq.broker.broker import Broker

__all__ = ["Broker", "BrokerConfig", "load_config"]
