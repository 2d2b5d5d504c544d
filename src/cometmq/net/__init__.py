"""Transports: the only room that imports socket, ssl or uvloop.

It moves bytes between sockets and the connections of ``wire``, runs timers and worker threads, and
bounds buffers. It knows no rule of a broker, name server or client.
"""

from cometmq.net.blocking import BlockingChannel
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Clock, Environment, SystemClock, ThreadWorkers, system_environment
from cometmq.net.loop import run, wait_for_stop_signal
from cometmq.net.network import Listener, Network, TcpNetwork, local_ip, parse_address
from cometmq.net.server import Answer, Handler, RemotingServer, ServerConnection

__all__ = [
    "Answer",
    "BlockingChannel",
    "Channel",
    "ChannelPool",
    "Clock",
    "Environment",
    "Handler",
    "Listener",
    "Network",
    "RemotingServer",
    "ServerConnection",
    "SystemClock",
    "TcpNetwork",
    "ThreadWorkers",
    "local_ip",
    "parse_address",
    "run",
    "system_environment",
    "wait_for_stop_signal",
]
