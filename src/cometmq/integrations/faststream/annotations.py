"""What a handler's parameter may be annotated with to be injected by FastStream."""

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from cometmq import Producer as ClientProducer
from cometmq.integrations.faststream.broker import CometBroker as Broker
from cometmq.integrations.faststream.message import CometStreamMessage

__all__ = ["CometBroker", "CometMessage", "ContextRepo", "Logger", "NoCast", "Producer"]

CometMessage = Annotated[CometStreamMessage, Context("message")]
CometBroker = Annotated[Broker, Context("broker")]
Producer = Annotated[ClientProducer, Context("broker._connection")]
