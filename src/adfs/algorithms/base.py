"""What an algorithm is to a runtime: how it starts, what an event or a round does, what its iterate is.

A *method* is the description that users pick by name; a *process* is a run of it in progress over a block of
nodes: all of them in the simulator, some of them on each rank of a cluster. Recording, stopping, progress,
checkpoints, clocks and messages live in the runtimes, once, and never in an algorithm.

Two kinds of process, one source each for every runtime:

- :class:`EventProcess`: executes the events of a schedule, and turns one communication into an outgoing and
  an incoming vector;
- `adfs.algorithms.round_process.RoundProcess`: all nodes go from round to round together, with a product by a
  gossip matrix that the runtime supplies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias

import numpy as np

from adfs.algorithms.method_kernels import EventKernels, Parts
from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.schedule import AliasTables, Events, Schedule, make_schedule
from adfs.theory import NodeSizes, NodeSummary

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: The type of a method's constants; what is said of any method leaves it out.
    P = TypeVar("P", default=Any)
    C_co = TypeVar("C_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    P, C_co = TypeVar("P"), TypeVar("C_co", covariant=True)


#: A method's own options, as users give them.
Options: TypeAlias = Mapping[str, Any]


class Work(NamedTuple):
    """What a process has done so far: samples processed, messages sent, and the numbers in them."""

    computations: int
    messages: int
    numbers: int


@dataclass(frozen=True, eq=False)
class EventEffort:
    """What a clock must know of an event-driven method, besides its schedule.

    A computation of the schedule takes one sample at its node.

    Attributes
    ----------
    before_exchange : ndarray of shape (n,)
        Samples that an end of a communication goes through before it sends.
    at_start : int
        Samples that each node goes through before the first event.
    """

    before_exchange: np.ndarray
    at_start: int = 0


@dataclass(frozen=True, eq=False)
class RoundEffort:
    """What a clock must know of a round.

    Attributes
    ----------
    samples : ndarray of shape (n,)
        Samples that each node goes through.
    exchanges : int
        Products with the gossip matrix, one after another.
    hops : int
        Messages one after another of a sum over all nodes, for which all wait.
    gossip_first : bool
        Whether the nodes exchange before they compute.
    gossip_probability : float, optional
        With this chance, by the coin that all nodes share, a round is its exchanges alone, and otherwise its
        samples alone. None: every round has both.
    """

    samples: np.ndarray
    exchanges: int = 1
    hops: int = 0
    gossip_first: bool = False
    gossip_probability: float | None = None


@dataclass(frozen=True)
class Setting(Generic[C_co]):
    """What a method starts from.

    Attributes
    ----------
    problem : FiniteSum
        The block's own nodes and samples.
    network : Network
        The whole network.
    parameters : object
        The method's constants, for the whole network.
    seed : int
    schedule : str
        ``"iid"`` or ``"poisson"``, for event-driven methods.
    nodes : ndarray, optional
        Which nodes of the network the block holds, in the order of the problem; all when None.
    options : mapping
        The method's own options.
    """

    problem: FiniteSum
    network: Network
    parameters: C_co
    seed: int = 0
    schedule: str = "iid"
    nodes: np.ndarray | None = None
    options: Options = field(default_factory=dict)

    @property
    def block(self) -> np.ndarray:
        """The nodes of the block, shape (k,)."""
        return np.arange(self.network.n_nodes) if self.nodes is None else np.asarray(self.nodes)


class Process(ABC):
    """A run in progress over a block of nodes.

    ``position`` says how far it is: the schedule's time for event-driven methods, the number of rounds for
    others. ``work`` is what has been done so far.

    Attributes
    ----------
    at_iterate : bool
        Whether the iterate is better than the point that the dual variables stand for, and to be certified.
    """

    at_iterate: ClassVar[bool] = False

    def __init__(self) -> None:
        self.position = 0.0
        self.work = Work(0, 0, 0)

    @abstractmethod
    def primal(self, read: str = "x") -> np.ndarray:
        """Return each node's iterate at the current position, shape (k, d).

        ``read`` is ``"x"`` or ``"v"`` where both exist.
        """

    def dual(self) -> np.ndarray | None:
        """Return the tips at the current position, a copy, shape (N, *tip_shape), where a method has them."""
        return None

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        """Put a run at position 0 at a dual point; return whether this kind can start elsewhere than at 0.

        Parameters
        ----------
        tips : ndarray of shape (N, *tip_shape)
            Inside their domains.
        centers : ndarray of shape (k, d)
            With the tips they must sum to 0 over all nodes.
        """
        return False

    @property
    def can_be_placed(self) -> bool:
        """Whether `place` is for this kind."""
        return type(self).place is not Process.place

    @property
    def stuck(self) -> bool:
        """Whether rounding lets the method go no further, in every process alike."""
        return False

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the whole state as named arrays, not copies: checkpoints save and resumed runs fill them."""


class OnePoint(Process):
    """A process whose nodes all hold the same θ; dual variables follow from it, s = wℓ'(xᵀθ).

    It is certified at that θ, where the gap is ‖∇F‖²/(2Σσ).

    Attributes
    ----------
    problem : FiniteSum
        This process's nodes.
    """

    problem: FiniteSum

    @property
    @abstractmethod
    def point(self) -> np.ndarray:
        """θ, shape (d,), not a copy."""

    @property
    @abstractmethod
    def seen(self) -> tuple[float, np.ndarray]:
        """F and ∇F (d,) there as far as they are known, in every process alike; zeros if not."""

    def primal(self, read: str = "x") -> np.ndarray:
        return np.tile(self.point, (self.problem.n_nodes, 1))

    def dual(self) -> np.ndarray | None:
        return self.problem.clip_to_domain(self.problem.slopes(self.point), in_place=True)

    def place_at(self, theta: np.ndarray) -> None:
        """Put a run at position 0 at θ (d,)."""
        self.point[:] = theta


class EventConstants(Protocol):
    """What a schedule needs of a method's constants: how often nodes and edges act."""

    @property
    def node_probability(self) -> np.ndarray: ...

    @property
    def edge_probability(self) -> np.ndarray: ...


class EventProcess(Process):
    """Executes events of a schedule, in any order that is valid for every node.

    A method says what an event does by three compiled functions (``kernels``) of one named tuple (``parts``);
    one without them defines `run`, `outgoing` and `incoming` itself and runs interpreted.

    Attributes
    ----------
    schedule : Schedule
    ends : ndarray of shape (|E|, 2)
        The two nodes of each edge.
    slot : ndarray of shape (n,)
        The place of each node in the block, −1 when it lives elsewhere.
    message_length : int
        Numbers in one message.
    kernels : EventKernels or None
    parts : tuple
        A named tuple of all that the kernels need.
    """

    kernels: ClassVar[EventKernels | None] = None
    parts: Parts = ()

    def __init__(self, setting: Setting[EventConstants], row_weights: np.ndarray) -> None:
        super().__init__()
        network, parameters, block = setting.network, setting.parameters, setting.block
        self.message_length = setting.problem.n_features
        self.ends, self.slot = network.ends, block_slots(network, block)
        self.schedule: Schedule = make_schedule(
            setting.schedule,
            seed=setting.seed,
            edges=network.ends,
            node_probability=parameters.node_probability,
            edge_probability=parameters.edge_probability,
            samples=AliasTables.build(row_weights, setting.problem.node_starts, node_ids=block),
            n_nodes=network.n_nodes,
        )

    def end(self, edge: int) -> int:
        """Return the place in the block of an edge's end, the first one when both are in it."""
        first, second = self.slot[self.ends[edge]]
        return int(first if first >= 0 else second)

    def count(self, computations: int, exchanges: int) -> None:
        """Add to the work done; an exchange is a message each way."""
        messages = self.work.messages + 2 * exchanges
        self.work = Work(self.work.computations + computations, messages, messages * self.message_length)

    def _own_kernels(self) -> EventKernels:
        if self.kernels is None:
            raise NotImplementedError(
                f"{type(self).__name__} has neither `kernels` nor its own `run`, `outgoing` and `incoming`"
            )
        return self.kernels

    def run(self, events: Events, first: int, last: int) -> int:
        """Execute events first … last − 1 and return ``last``.

        Or stop before a communication with a node of another block, and return its index.
        """
        return self._own_kernels().run(self.parts, *events, first, last)

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        """Return what the block's end of an edge sends at a communication, shape (message_length,)."""
        out = np.empty(self.message_length)
        self._own_kernels().outgoing(self.parts, self.end(edge), time, out)
        return out

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        """Finish that communication at the block's end, from what it sent and what it received."""
        self._own_kernels().incoming(self.parts, edge, self.end(edge), time, own, message)


Source = FiniteSum | NodeSummary


class Method(ABC, Generic[P]):
    """A method users pick by name.

    Attributes
    ----------
    name : str
    kind : str
        ``"events"``, ``"rounds"``, or ``"single"`` for methods that run on one machine with all the data.
    smooth_only : bool
        Whether it needs a smooth loss.
    general : bool
        Whether it also runs on general terms.
    several_outputs : bool
        Whether it also runs on models with several outputs.
    checks_every_round : bool
        Whether it knows F and its gradient after each round, so that a check costs no pass.
    assumes_curvature : bool
        Whether it also runs on losses whose curvature has no bound.
    l1 : bool
        Whether it also runs on problems with an ℓ1 term.
    stages : str
        The name of the rule that decides about the stages of a run; without one a run has one stage. The
        rules are in `adfs.stages`.
    options : tuple of str
        The names of its own options.
    record : type
        The class of its constants.
    choices : mapping of str to callable
        The named sets of constants, the default first, each a function of the problem (or its summary), the
        network and τ (nan when not given).
    process : callable
        Makes a process at position 0 from a `Setting`, where `start` does not.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    smooth_only: ClassVar[bool] = True
    general: ClassVar[bool] = False
    several_outputs: ClassVar[bool] = False
    checks_every_round: ClassVar[bool] = False
    assumes_curvature: ClassVar[bool] = False
    l1: ClassVar[bool] = False
    stages: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()
    record: type[P]
    choices: Mapping[str, Callable[[Source, Network, float], P]]
    process: ClassVar[Callable[..., Process]]

    def parameters(
        self,
        problem: Source,
        network: Network,
        *,
        choice: str | P | None = None,
        tau: float | None = None,
    ) -> P:
        """Return the method's constants: the set of that name (None: the first), or the record given."""
        if isinstance(choice, self.record):
            return choice
        name = next(iter(self.choices)) if choice is None else choice
        if not isinstance(name, str) or name not in self.choices:
            raise unknown_name("choice of parameters", choice, self.choices)
        return self.choices[name](problem, network, math.nan if tau is None else float(tau))

    def start(self, setting: Setting[P]) -> Process:
        """Return a process at position 0."""
        return self.process(setting)

    def position_of(self, parameters: P, sizes: NodeSizes, passes: float) -> float:
        """Return the position at which about this many passes over the data have been made.

        By default a round is a pass, and an event one sample, as often as the constants say how often nodes
        act.
        """
        acting = getattr(parameters, "node_probability", None)
        return passes if acting is None else passes * float(sizes.n_samples.sum()) / float(acting.sum())

    def adapt(self, parameters: P, options: Options) -> P:
        """Return the constants with the method's own options put in; a run calls it, once.

        Options that do not touch them change nothing.
        """
        return parameters

    def refine(self, parameters: P, problem: FiniteSum, total: Callable[[np.ndarray], np.ndarray]) -> P:
        """Return named constants made better by sums over the data of all nodes; a run calls it, once.

        ``total`` is that of a `Gossip`; every process calls it equally often.
        """
        return parameters

    def effort(self, parameters: P, sizes: NodeSizes, network: Network) -> EventEffort | RoundEffort:
        """Return what a clock must know of an event or a round.

        By default a computation takes one sample and a communication nothing but its messages; a round is a
        pass over each node's samples and one exchange.
        """
        if self.kind == "rounds":
            return RoundEffort(sizes.n_samples)
        return EventEffort(np.zeros(network.n_nodes, dtype=np.int64))

    def check(self, problem: FiniteSum, options: Options) -> None:
        """Raise :class:`InputError` unless the method can run on a problem with these options."""
        loss, trouble = problem.loss_name, ""
        smooth = problem.smooth or problem.assumes_curvature
        if problem.l1 is not None and not smooth:
            raise InputError(
                f"an l1 term (elastic net) needs a smooth loss and {loss!r} is not; use a smoothed one "
                "(smoothed_hinge, huber, smoothed_quantile), or no l1 term"
            )
        if not problem.linear and not self.general:
            trouble = "takes linear models (adfs.Problem); general terms run with 'adfs'"
        elif problem.n_outputs > 1 and not self.several_outputs:
            trouble = f"takes one output per sample and the loss {loss!r} has {problem.n_outputs}; "
            trouble += "use 'adfs', or 'apcg' on one machine"
        elif problem.l1 is not None and not self.l1:
            trouble = "takes no l1 term (elastic net); use 'adfs', 'adfs-block', or 'apcg' on one machine"
        elif problem.assumes_curvature and not self.assumes_curvature:
            trouble = f"needs a bound of the curvature, which the loss {loss!r} has not; "
            trouble += "use 'adfs' or 'adfs-block'"
        elif self.smooth_only and not smooth:
            trouble = f"needs a smooth loss and {loss!r} is not; use 'ns-adfs', or a smoothed loss "
            trouble += "(smoothed_hinge, huber, smoothed_quantile)"
        if trouble:
            raise InputError(f"method {self.name!r} {trouble}")
        self.check_options(options)

    def check_options(self, options: Iterable[str], also: Sequence[str] = ()) -> None:
        """Raise :class:`InputError` unless the method has these options; ``also`` may have been meant."""
        for option in options:
            if option not in self.options:
                known = (*self.options, *also)
                raise unknown_name(f"option of {self.name!r}", option, known or ("(none)",))


def block_slots(network: Network, block: np.ndarray) -> np.ndarray:
    """Return the place of each node in a block, −1 where it is not in it; shape (n,), int32."""
    slot = np.full(network.n_nodes, -1, dtype=np.int32)
    slot[block] = np.arange(block.size)
    return slot


METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Add a method to the registry, so that it can be picked by name everywhere."""
    METHODS[method.name] = method
    return method


def get_method(method: str | Method) -> Method:
    """Return a method from its name, or the method itself."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    return METHODS[method]
