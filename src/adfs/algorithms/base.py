"""The contract between methods and runtimes: how a method starts, what an event or a round does.

A *method* is the description that users pick by name: what it can solve, its constants, its cost. A *process*
is a run of it in progress over a block of nodes: all nodes in a simulation, some of them on each rank of a
cluster. Recording, stopping, checkpoints, clocks and messages are the runtimes' work, never a method's.

There are two kinds of process. An :class:`EventProcess` executes the events of a schedule, and turns one
communication into an outgoing and an incoming vector. In a `adfs.algorithms.round_process.RoundProcess` all
nodes go from round to round together, with products by a gossip matrix or sums over all nodes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias

import numpy as np

from adfs.algorithms.costs import Cost, EventEffort, RoundEffort, predicted_cost
from adfs.algorithms.method_kernels import EventKernels, Parts
from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.problem import FiniteSum, Loss
from adfs.schedule import SCHEDULES, AliasTables, Events, Schedule
from adfs.theory import Facts, NodeSizes, NodeSummary, NoParameters

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: The type of a method's constants; annotations that hold for any method leave it out.
    P = TypeVar("P", default=Any)
    C_co = TypeVar("C_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    P, C_co = TypeVar("P"), TypeVar("C_co", covariant=True)

Options: TypeAlias = Mapping[str, Any]  #: a method's own options, as users give them
Source: TypeAlias = FiniteSum | NodeSummary  #: the data, or the numbers per node that constants are made of
Choice: TypeAlias = Callable[[Source, Network, float], Any]  #: computes a named set of constants for a τ


class Work(NamedTuple):
    """The work of a process so far: samples processed, messages sent, and the numbers in them."""

    computations: int
    messages: int
    numbers: int


@dataclass(frozen=True)
class Setting(Generic[C_co]):
    """The inputs of a process.

    Attributes
    ----------
    problem : FiniteSum
        The nodes and samples of the block.
    network : Network
        The network of all nodes.
    parameters : object
        The method's constants, for all nodes.
    seed : int
    schedule : str
        ``"iid"`` or ``"poisson"``, for event-driven methods.
    nodes : ndarray, optional
        The numbers of the block's nodes in the network, in the order of the problem; None: all nodes.
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

    @property
    def slot(self) -> np.ndarray:
        """The place of each node in the block, −1 where it is not in it; shape (n,), int32."""
        slot = np.full(self.network.n_nodes, -1, dtype=np.int32)
        slot[self.block] = np.arange(self.block.size)
        return slot


class Process(ABC):
    """A run in progress over a block of nodes.

    ``position`` is the schedule's time for event-driven methods, the number of rounds for others.

    Attributes
    ----------
    certify_iterate : bool
        Whether certificates are of the nodes' mean iterate. By default they are of θ(s), the point that
        belongs to the dual variables s.
    can_be_placed : bool
        Whether this kind of process can start at a dual point.
    """

    certify_iterate: ClassVar[bool] = False
    can_be_placed: ClassVar[bool] = False
    position: float = 0.0
    work: Work = Work(0, 0, 0)

    def __init_subclass__(cls) -> None:
        cls.can_be_placed = cls.place is not Process.place

    @abstractmethod
    def primal(self, read: str = "x") -> np.ndarray:
        """Return each node's iterate, (k, d); ``read`` is "x", or "v" where a method has both."""

    def dual(self) -> np.ndarray | None:
        """Return a copy of the dual variables, (N, *dual_shape); None for a method without them."""
        return None

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        """Start at a dual point instead of at 0; return whether this kind of process can.

        Parameters
        ----------
        duals : ndarray of shape (N, *dual_shape)
            Inside their domains.
        centers : ndarray of shape (k, d)
            Together with the rows times the duals they must sum to 0 over all nodes.
        """
        return False

    @property
    def exhausted(self) -> bool:
        """Whether rounding prevents any further progress; the same in every process."""
        return False

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays, not copies: checkpoints save them, resumed runs fill them."""
        return dict(self.state._asdict())  # type: ignore[attr-defined]


class EventProcess(Process):
    """Executes the events of a schedule, in any order that is valid for every node.

    The method's constants say how often nodes and edges act: ``node_probability`` and ``edge_probability``.
    A method defines an event by three compiled functions (``kernels``) of one named tuple (``parts``). A
    method without them defines `run`, `outgoing` and `incoming` itself and runs interpreted.

    Attributes
    ----------
    schedule : Schedule
    ends : ndarray of shape (|E|, 2)
        The two nodes of each edge.
    slot : ndarray of shape (n,)
        The place of each node in the block, −1 when another process holds it.
    message_length, row_length : int, float
        Numbers in one message, and in a row (the mean).
    """

    kernels: ClassVar[EventKernels | None] = None
    parts: Parts = ()

    def __init__(self, setting: Setting, row_weights: np.ndarray) -> None:
        # A message is one vector; a node draws its samples by the weights of its rows.
        network, parameters, block = setting.network, setting.parameters, setting.block
        self.message_length = setting.problem.n_features
        self.row_length = float(setting.problem.entries_per_row or self.message_length)
        self.ends, self.slot = network.ends, setting.slot
        self.further = np.zeros(1, dtype=np.int64)
        self.schedule: Schedule = SCHEDULES[setting.schedule](
            seed=setting.seed,
            edges=network.ends,
            node_probability=parameters.node_probability,
            edge_probability=parameters.edge_probability,
            samples=AliasTables.build(row_weights, setting.problem.node_starts, node_ids=block),
            n_nodes=network.n_nodes,
            faults=network.faults,
        )

    def end(self, edge: int) -> int:
        """Return the place in the block of an edge's end, the first one when both are in it."""
        first, second = self.slot[self.ends[edge]]
        return int(first if first >= 0 else second)

    def count(self, computations: int, exchanges: int) -> None:
        """Add to the work done; an exchange is a message each way, and kernels count ``further`` samples."""
        messages = self.work.messages + 2 * exchanges
        computations += self.work.computations + int(self.further[0])
        self.further[0] = 0
        self.work = Work(computations, messages, messages * self.message_length)

    def run(self, events: Events, first: int, last: int) -> int:
        """Execute events first … last − 1; stop before one with a node of another block; return its index."""
        assert self.kernels is not None, "a process without kernels has its own `run`"
        return self.kernels.run(self.parts, *events, first, last)

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        """Return the message of the block's end of an edge at a communication, shape (message_length,)."""
        assert self.kernels is not None, "a process without kernels has its own `outgoing`"
        out = np.empty(self.message_length)
        self.kernels.outgoing(self.parts, self.end(edge), time, out)
        return out

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        """Finish that communication at the block's end, from the messages that it sent and received."""
        assert self.kernels is not None, "a process without kernels has its own `incoming`"
        self.kernels.incoming(self.parts, edge, self.end(edge), time, own, message)


class Method(ABC, Generic[P]):
    """A method that users pick by name.

    Attributes
    ----------
    name : str
    label : str
        The name in tables and figures; that of the method when left out.
    kind : str
        ``"events"``, ``"rounds"``, or ``"single"`` for methods that run on one machine with all the data.
    needs_smooth, needs_curvature, needs_ridge : bool
        Whether it needs a smooth loss; one whose curvature changes continuously; an ℓ2 term, which a lasso
        does not have.
    most_features : float
        The largest number d of features that it takes; with an ℓ1 term, of which few columns enter a matrix,
        any number.
    needs_sums : bool
        Whether its rounds take sums over all nodes, for which all nodes wait.
    invariant_to_units : bool
        Whether its iterates do not depend on the units of the features.
    primal : bool
        Whether it works on θ, and its dual variables follow from θ.
    general_terms, several_outputs, l1, unbounded_curvature, unpenalised_columns : bool
        Whether it also runs on terms with a prox of their own, on models with several outputs, with an ℓ1
        term, on losses whose curvature has no bound, with columns that have no ℓ2 term.
    lost_exchanges, changing_networks : bool
        Whether it runs where exchanges fail at both ends, and where the graph changes during a run.
    warm_starts : bool
        Whether it can start from a point of an earlier run.
    needs_network : bool
        Whether it needs at least two nodes.
    solves_locally : bool
        Whether a node solves a problem of its own in each step, which the idealised clock counts as one pass.
    observed_factor : float
        Events (or rounds) × contraction that divide the certified gap by e in runs; theory promises 1.
    baseline : bool
        Whether it is there to compare others with; messages do not propose it.
    checks_every_round : bool
        Whether a check after a round costs no pass, and its rounds end where rounding does.
    reference_order : float
        Its place in the order in which `Problem.optimum` tries methods; infinite: never.
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
    label: ClassVar[str]
    kind: ClassVar[str]
    needs_smooth: ClassVar[bool] = True
    needs_curvature: ClassVar[bool] = False
    needs_ridge: ClassVar[bool] = True
    most_features: ClassVar[float] = math.inf
    needs_sums: ClassVar[bool] = False
    invariant_to_units: ClassVar[bool] = False
    primal: ClassVar[bool] = False
    general_terms: ClassVar[bool] = False
    several_outputs: ClassVar[bool] = False
    l1: ClassVar[bool] = False
    unbounded_curvature: ClassVar[bool] = False
    unpenalised_columns: ClassVar[bool] = False
    lost_exchanges: ClassVar[bool] = False
    changing_networks: ClassVar[bool] = False
    warm_starts: ClassVar[bool] = False
    needs_network: ClassVar[bool] = False
    solves_locally: ClassVar[bool] = False
    observed_factor: ClassVar[float] = 1.0
    baseline: ClassVar[bool] = False
    checks_every_round: ClassVar[bool] = False
    reference_order: ClassVar[float] = math.inf
    stages: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()
    record: ClassVar[type[Any]] = NoParameters
    choices: ClassVar[Mapping[str, Choice]] = MappingProxyType(
        {"theory": lambda problem, network, tau: NoParameters()}
    )
    process: ClassVar[Callable[..., Process]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__ and "label" not in cls.__dict__:
            cls.label = cls.name

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
            return choice  # type: ignore[no-any-return]
        # None stands for the first set, which is the method's default.
        name = next(iter(self.choices)) if choice is None else choice
        if not isinstance(name, str) or name not in self.choices:
            raise unknown_name("choice of parameters", choice, self.choices)
        # If a share of the exchanges is lost, one that gets through takes more than τ.
        time = math.nan if tau is None else float(tau) / (1.0 - network.lost)
        return self.choices[name](problem, network, time)  # type: ignore[no-any-return]

    def parameters_for(self, loss: Loss, given: object) -> object:
        """Return the choice of parameters for a fit with a loss, where the user gave none."""
        return given

    def start(self, setting: Setting[P]) -> Process:
        """Return a process at position 0."""
        return self.process(setting)

    def position_of(self, parameters: P, sizes: NodeSizes, passes: float) -> float:
        """Return the position at which about this many passes over the data have been made."""
        # By default a round is a pass. An event is one sample, as often as the constants make nodes act.
        acting = getattr(parameters, "node_probability", None)
        return passes if acting is None else passes * float(sizes.n_samples.sum()) / float(acting.sum())

    def adapt(self, parameters: P, options: Options) -> P:
        """Return the constants with the method's own options put in; a run calls it if there are any."""
        return parameters

    def refine(self, parameters: P, problem: FiniteSum, total: Callable[[np.ndarray], np.ndarray]) -> P:
        """Return named constants improved by sums over all nodes (``total`` of a `Gossip`)."""
        return parameters

    def effort(self, parameters: P, sizes: NodeSizes, network: Network) -> EventEffort | RoundEffort:
        """Return the work of an event or a round, for the clock."""
        # By default a round is a pass over each node's samples and one exchange. A computation is one sample,
        # and a communication its messages alone.
        if self.kind == "rounds":
            return RoundEffort(sizes.n_samples)
        return EventEffort(np.zeros(network.n_nodes, dtype=np.int64))

    # ------------------------------------------------------------------ what it costs

    def can_solve(self, facts: Facts, n_nodes: int) -> bool:
        """Whether the method suits a problem on so many nodes, as far as facts tell."""
        if n_nodes > 1 if self.kind == "single" else self.needs_network and n_nodes == 1:
            return False
        if (facts.n_outputs > 1 and not self.several_outputs) or (facts.l1 and not self.l1):
            return False
        if self.needs_ridge and not facts.ridge:
            return False
        curved = facts.curvature_type == "continuous"
        # An intercept without a penalty is a column, which the facts do not count.
        features = facts.n_features + facts.intercept * facts.n_outputs
        if (features > self.most_features and not facts.l1) or (self.needs_curvature and not curved):
            return False
        if facts.curvature_type == "unbounded":
            return self.unbounded_curvature
        # The rate of a method for kinked losses is far worse than that of a smooth one.
        return self.needs_smooth == facts.smooth

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        """Return the predicted computations and messages to a certified relative gap of ``tol``.

        By default the ``contraction`` of the constants decides, times ``observed_factor``. A method that
        ``"auto"`` may choose has a formula of its own.
        """
        return predicted_cost(self, facts, network, tol, tau)

    def obstacle(self, problem: FiniteSum) -> str:
        """Return why the method cannot run on a problem, as the rest of a sentence; empty if it can."""
        loss, d, most = problem.loss.name, problem.n_features, self.most_features
        if d > most and problem.l1 is None:
            return f"forms a matrix of {d} × {d} numbers here, and takes at most {most} features"
        if not problem.linear and not self.general_terms:
            return "takes linear models (adfs.Problem) and no general terms"
        if problem.n_outputs > 1 and not self.several_outputs:
            return f"takes one output per sample and the loss {loss!r} has {problem.n_outputs}"
        if problem.l1 is not None and not self.l1:
            return "takes no l1 term (elastic net)"
        if problem.ridge_columns is not None and not self.unpenalised_columns:
            return "takes no columns without a penalty"
        if problem.assumes_curvature and not self.unbounded_curvature:
            return f"needs a bound of the curvature, which the loss {loss!r} has not"
        if self.needs_smooth and not (problem.smooth or problem.assumes_curvature):
            return f"needs a smooth loss and {loss!r} is not (smoothed_hinge, huber, smoothed_quantile are)"
        if self.needs_ridge and not problem.sigma.all():
            return "needs an l2 term beside the l1 term (sigma above 0, l1_ratio below 1)"
        return ""

    def check(self, problem: FiniteSum) -> None:
        """Raise :class:`InputError` unless the method can run on a problem."""
        if problem.l1 is not None:
            problem.check_l1()
        if obstacle := self.obstacle(problem):
            # Propose what the attributes of the other methods allow.
            others = [other for other in METHODS.values() if not (other.baseline or other.obstacle(problem))]
            names = [f"{one.name!r}{' (one machine)' if one.kind == 'single' else ''}" for one in others]
            advice = f"use {' or '.join(names)}" if names else "no other method can solve this problem"
            raise InputError(f"method {self.name!r} {obstacle}; {advice}")

    def check_options(self, options: Iterable[str], also: Sequence[str] = ()) -> None:
        """Raise :class:`InputError` unless the method has these options; ``also`` may have been meant."""
        for option in options:
            if option not in self.options:
                known = (*self.options, *also)
                raise unknown_name(f"option of {self.name!r}", option, known or ("(none)",))


def without_tau(functions: Mapping[str, Callable[[Source, Network], Any]]) -> Mapping[str, Choice]:
    """Return the choices of a method whose constants are functions of the problem and the network alone."""

    def choice(function: Callable[[Source, Network], Any]) -> Choice:
        return lambda problem, network, tau: function(problem, network)

    return MappingProxyType({name: choice(function) for name, function in functions.items()})


METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Add a method to the registry: it can then be picked by name everywhere."""
    METHODS[method.name] = method
    return method


def get_method(method: str | Method) -> Method:
    """Return a method from its name, or the method itself."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    return METHODS[method]
