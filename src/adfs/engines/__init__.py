"""Engines that place the data and start the processes: Dask and Spark. `adfs.TcpPeers` carry the messages."""

from adfs.engines import spark
from adfs.engines.dask import DaskWorkers

__all__ = ["DaskWorkers", "spark"]
