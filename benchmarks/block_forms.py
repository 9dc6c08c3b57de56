"""Prototypes of forms of block ADFS that are not in the package; `benchmarks.variants` measures them.

Each one is the method of `adfs.algorithms.adfs_block` with the constants that its theory gives for K
Chebyshev products per gossip, b samples per node and step, matchings in place of whole gossip rounds, or
stages in a metric, which move the certain part of the losses' curvature into the centres.
``docs/explained/variants.md`` has the formulas.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg

from adfs.network import ChebyshevCoefficients, Network
from adfs.problem import Problem
from adfs.theory import tree_depth
from benchmarks.block_form_rounds import Constants, Links, State, Terms, run_rounds

TARGET = 1e-6
LONGEST = 2e7  # in idealised time
# The rule of adaptive stages in `adfs.stages`: the share of the radius, the fall of the gap, the share of the
# time.
SHARE, GAP_FACTOR, TIME_SHARE = 0.2, 4.0, 0.7
SPLITS = np.linspace(0.02, 0.5, 25)


# --------------------------------------------------------------------------- the constants


@dataclass(frozen=True)
class Form:
    """A form of block ADFS.

    ``metric`` is empty without stages; ``"none"`` for stages with smaller curvatures alone, as the package
    has them; or what the clock counts in a metric: ``"one"`` step is one sample, and a stage
    as much as an adaptive stage of the package; ``"flops"`` counts all products, with 5w + 75 of them per
    step on a row of w numbers, and rows are dense in a metric; with ``"d"`` a step takes d.
    """

    name: str
    products: int = 1
    batch: int = 1
    matchings: bool = False
    metric: str = ""


def matchings_of(network: Network) -> np.ndarray:
    """Return the number of a matching for each edge, by greedy colouring, the edges of a cycle in turn."""
    used: list[set[int]] = [set() for _ in range(network.n_nodes)]
    owner = np.zeros(network.n_edges, dtype=np.int64)
    for e in np.lexsort(network.edges.T[::-1]):
        i, j = network.edges[e]
        owner[e] = next(k for k in range(network.n_edges) if k not in used[i] | used[j])
        used[i].add(owner[e])
        used[j].add(owner[e])
    return owner


def gossip_of(form: Form, network: Network) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the matrices (M, n, n) of which a gossip takes one, each edge's, and R."""
    laplacian, nobody = network.laplacian().toarray(), np.full(network.n_edges, -1)
    if form.matchings:
        owner, n = matchings_of(network), network.n_nodes
        incidence = np.zeros((network.n_edges, n))
        incidence[np.arange(network.n_edges), network.edges[:, 0]] = 1.0
        incidence[np.arange(network.n_edges), network.edges[:, 1]] = -1.0
        projector = incidence @ np.linalg.pinv(incidence)
        parts = [incidence[owner == k].T @ incidence[owner == k] for k in range(owner.max() + 1)]
        largest = [
            np.linalg.eigvalsh(projector[np.ix_(owner == k, owner == k)])[-1] for k in range(owner.max() + 1)
        ]
        return np.array(parts), owner, float(max(largest))
    if form.products > 1:
        known = ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max)
        identity = np.eye(network.n_nodes)
        inner = known.stretch * (identity - known.step * laplacian)
        before, now, scale_before, scale = identity, inner, 1.0, known.stretch
        for _ in range(form.products - 1):
            before, now = now, 2.0 * inner @ now - before
            scale_before, scale = scale, 2.0 * known.stretch * scale - scale_before
        laplacian = identity - now / scale
    return laplacian[None], nobody, 1.0


def largest_of(terms: Terms) -> np.ndarray:
    """Return λ_max of each node's remaining curvature, (n,)."""
    parts = [slice(a, b) for a, b in itertools.pairwise(terms.starts)]
    grams = [terms.X[part].T @ (terms.X[part] * terms.rest[part, None]) for part in parts]
    return np.array([np.linalg.eigvalsh(gram)[-1] for gram in grams])


def separable(form: Form, X: np.ndarray, starts: np.ndarray) -> float:
    """Return the factor of the expected separable bound for b samples drawn without replacement."""
    if form.batch == 1:
        return 1.0
    unit, m = X / np.linalg.norm(X, axis=1, keepdims=True), int(np.diff(starts).max())
    grams = [unit[a:b].T @ unit[a:b] for a, b in itertools.pairwise(starts)]
    largest = max(float(np.linalg.eigvalsh(gram)[-1]) for gram in grams)
    return 1.0 + (form.batch - 1.0) * (largest - 1.0) / (m - 1.0)


def constants_of(
    form: Form, terms: Terms, sigma: float, gossips: np.ndarray, bound: float, tau: float
) -> tuple[Constants, float]:
    """Return the constants with the split r of the least predicted time, and that time per factor e."""
    norms, sizes = (terms.X**2).sum(axis=1), np.diff(terms.starts)
    roots = np.sqrt(1.0 + separable(form, terms.X, terms.starts) * terms.rest * norms / sigma)
    if form.batch > 1:  # equally likely
        roots = np.full(roots.size, roots.max())
    sums = np.add.reduceat(roots, terms.starts[:-1])
    kappa, laplacian = largest_of(terms) / sigma, gossips.sum(axis=0)
    spread = sum(math.sqrt(bound * np.linalg.eigvalsh(each)[-1] / sigma) for each in gossips)
    best: tuple[float, ...] = (math.inf,)
    for r in SPLITS:
        mass = np.diag(sigma * (1.0 + kappa / (1.0 - r)))
        curvature = float(scipy.linalg.eigh(laplacian, mass, eigvals_only=True)[1])
        computing = sums.max() / (form.batch * math.sqrt(r))
        gossiping = spread / math.sqrt(curvature)
        time = form.batch * computing + form.products * tau * gossiping
        if time < best[0]:
            best = (time, r, curvature, computing, gossiping)
    time, r, curvature, computing, gossiping = best
    rho = 1.0 / (computing + gossiping)
    p_comm = rho * gossiping
    node = np.repeat(np.arange(sizes.size), sizes)
    probability = (1.0 - p_comm) * form.batch * roots / sums[node]
    mixing, each = rho / probability, p_comm / len(gossips)
    cumulated = np.concatenate([np.cumsum(part) for part in np.split(roots, terms.starts[1:-1])])
    steps = (rho / (curvature * each), bound * rho / each, mixing, mixing / r * terms.rest, cumulated)
    return Constants(rho, p_comm, *steps), time


# --------------------------------------------------------------------------- a run


def loss_sum(margins: np.ndarray) -> np.ndarray:
    """Return the sum of the losses at the margins of signed rows, over the first axis."""
    return np.logaddexp(0.0, -margins).sum(axis=0)


def optimum(X: np.ndarray, total: float) -> float:
    """Return F* by damped Newton steps."""
    theta = np.zeros(X.shape[1])

    def objective(at: np.ndarray) -> float:
        return float(loss_sum(X @ at) + 0.5 * total * at @ at)

    for _ in range(200):
        p = 1.0 / (1.0 + np.exp(X @ theta))
        gradient = total * theta - X.T @ p
        hessian = X.T @ (X * (p * (1.0 - p))[:, None]) + total * np.eye(theta.size)
        move, length = np.linalg.solve(hessian, gradient), 1.0
        while length > 1e-8 and objective(theta - length * move) > objective(theta):
            length *= 0.5
        theta = theta - length * move
        if gradient @ move <= 1e-22 * X.shape[0]:
            break
    return objective(theta)


class Result(NamedTuple):
    """The time to the target, the predicted one per factor e, the stages, and `observed_rate`."""

    time: float
    predicted: float
    stages: float
    rate: float


@dataclass
class Stage:
    """What a stage runs on: its terms, their constants, and the root of the metric that maps rows into it."""

    terms: Terms
    sigma: float
    root: np.ndarray
    constants: Constants
    time: float


class Variant:
    """A run of a form on a problem of the logistic loss with the same σ at all nodes."""

    def __init__(self, form: Form, problem: Problem, network: Network, tau: float, seed: int) -> None:
        X = problem.X.toarray() if problem.sparse else problem.X
        self.form, self.tau = form, tau
        self.X = np.ascontiguousarray(X * problem.y[:, None])
        self.starts = np.asarray(problem.node_starts, dtype=np.int64)
        self.sigma, self.n = float(problem.sigma[0]), network.n_nodes
        self.gossips, owner, self.bound = gossip_of(form, network)
        self.at_zero, self.least = self.X.shape[0] * math.log(2.0), optimum(self.X, self.n * self.sigma)
        self.links = Links(network.edges.astype(np.int64), owner, form.products)
        self.depth, self.rng = tree_depth(network), np.random.default_rng(seed)

    def start(self) -> Stage:
        """Return the first stage: no intervals."""
        count = self.X.shape[0]
        free, quarter = np.full(count, math.inf), np.full(count, 0.25)
        terms = Terms(self.X, np.zeros(count), quarter, -free, free, self.starts)
        return self.stage(terms, self.sigma, np.eye(self.X.shape[1]))

    def stage(self, terms: Terms, sigma: float, root: np.ndarray) -> Stage:
        """Return a stage with its constants."""
        found = constants_of(self.form, terms, sigma, self.gossips, self.bound, self.tau)
        return Stage(terms, sigma, root, *found)

    def charge(self, state: State, passes: float, sums: int) -> None:
        """Let all nodes go through their samples, and sum up and down a tree."""
        for i, size in enumerate(np.diff(self.starts)):
            state.times[i] += self.rng.gamma(passes * size) if passes else 0.0
        hops = 2 * self.depth * sums
        state.times[:] = state.times.max() + (self.tau * self.rng.gamma(hops) if hops else 0.0)

    def certify(self, stage: Stage, state: State, t: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Return θ, the dual variables of the losses themselves, and the certified gap."""
        decay = math.log((1.0 - stage.constants.rho) / (1.0 + stage.constants.rho))
        tips = state.tip_mean - 0.5 * state.tip_lag * np.exp(decay * (t - state.tip_time))
        theta = stage.root @ (-(stage.terms.X.T @ tips) / (self.n * stage.sigma))
        duals = np.clip(tips + stage.terms.certain * (self.X @ theta), -1.0, 0.0)
        total = self.n * self.sigma
        theta = -(self.X.T @ duals) / total
        p = -duals
        entropy = sum(np.where(q > 0.0, q * np.log(np.maximum(q, 1e-300)), 0.0) for q in (p, 1.0 - p))
        dual = -float(np.sum(entropy)) - 0.5 * total * float(theta @ theta)
        return theta, duals, float(loss_sum(self.X @ theta) + 0.5 * total * theta @ theta) - dual

    def in_metric(self, theta: np.ndarray, gap: float) -> Stage:
        """Return the stage in the metric of the certain curvature around a certified point."""
        margins, total = self.X @ theta, self.n * self.sigma
        if self.form.metric == "none":
            radius = SHARE * math.sqrt(gap / total) * np.linalg.norm(self.X, axis=1)
            low, high = margins - radius, margins + radius
            p = 1.0 / (1.0 + np.exp(np.maximum(0.0, np.maximum(low, -high))))
            terms = Terms(self.X, np.zeros(p.size), p * (1.0 - p), low, high, self.starts)
            return self.stage(terms, self.sigma, np.eye(theta.size))

        def curvature(u: np.ndarray) -> np.ndarray:
            p = 1.0 / (1.0 + np.exp(np.abs(u)))
            return np.asarray(p * (1.0 - p))

        def hessian(curvatures: np.ndarray) -> np.ndarray:
            return np.asarray(self.X.T @ (self.X * curvatures[:, None]) + total * np.eye(theta.size))

        # A share of the radius of the second-order model: F − F* is about half the squared distance in ∇²F.
        factor = np.linalg.cholesky(hessian(curvature(margins)))
        inside = scipy.linalg.solve_triangular(factor, self.X.T, lower=True)
        radius = SHARE * math.sqrt(2.0 * gap) * np.linalg.norm(inside, axis=0)
        low, high = margins - radius, margins + radius
        most = curvature(np.maximum(0.0, np.maximum(low, -high)))
        certain = curvature(np.maximum(np.abs(low), np.abs(high)))
        # Quadratics may be moved from node to node: all of them get the mean, which becomes the identity.
        root = np.linalg.inv(np.linalg.cholesky(hessian(certain) / self.n)).T
        rows = np.ascontiguousarray(self.X @ root)
        return self.stage(Terms(rows, certain, most - certain, low, high, self.starts), 1.0, root)

    def place(self, stage: Stage, theta: np.ndarray, duals: np.ndarray, times: np.ndarray) -> State:
        """Return the state at a certified point: every centre at the θ of the tips."""
        terms = stage.terms
        tips = duals - terms.certain * (self.X @ theta)
        if stage.root.size and np.isfinite(terms.low).all():
            low, high = (-1.0 / (1.0 + np.exp(u)) - terms.certain * u for u in (terms.low, terms.high))
            tips = np.clip(tips, low, high)
        mean = np.repeat(-(terms.X.T @ tips)[None] / self.n, self.n, axis=0)  # σ_i is the same at all nodes
        zeros = np.zeros(tips.size)
        return State(mean, np.zeros_like(mean), tips, zeros, zeros.copy(), times)

    def works(self) -> tuple[float, float]:
        """Return the work of a step in a metric, and the passes of a stage besides its certificate."""
        d, w = self.X.shape[1], np.count_nonzero(self.X) / self.X.shape[0]
        step, grams = 5.0 * w + 75.0, w * (w + 1.0)
        if self.form.metric in ("none", "one"):
            return 1.0, min(math.ceil(0.5 * d * (d + 1.0) / (5.0 * d + 75.0)), 8)
        if self.form.metric == "d":
            return float(d), grams / step
        # Two matrices of second derivatives, and two triangular solves for every row.
        return (5.0 * d + 75.0) / step, (grams + d * (d + 1.0)) / step

    def first_check(self, stage: Stage, work: float, passes: float) -> float:
        """Return the step of a stage's first check: when it has taken as long as the check."""
        if not self.form.metric:
            return math.inf
        # Without any remaining curvature every sample is still drawn: is there something to gain?
        flat = stage.terms._replace(rest=np.zeros_like(stage.terms.rest))
        if self.stage(flat, stage.sigma, stage.root).time > TIME_SHARE * stage.time:
            return math.inf
        share = stage.constants.p_comm
        check = (1.0 + passes) * float(np.diff(self.starts).max()) + 8.0 * self.depth * self.tau
        return math.ceil(check / ((1.0 - share) * work + share * self.tau))

    def run(self) -> Result:
        """Run until the mean error of the nodes is well below the target."""
        stage, work, (later, passes) = self.start(), 1.0, self.works()
        state = self.place(stage, np.zeros(self.X.shape[1]), np.zeros(self.X.shape[0]), np.zeros(self.n))
        begun, t, stages, trace = self.at_zero, 0, 1, [(0.0, 1.0, 0.0)]
        predicted = stage.time
        check = self.first_check(stage, work, passes)
        while True:
            until = min(t + max(1, round(0.15 / stage.constants.rho)), check)
            run_rounds(
                *(stage.terms, stage.constants, state, 1.0 / stage.sigma, self.gossips, self.links),
                *(self.form.batch, self.tau, work, t, int(until), self.rng),
            )
            exponent, t = trace[-1][2] + (until - t) * stage.constants.rho, int(until)
            points = stage.root @ ((state.mean - 0.5 * state.lag) / stage.sigma).T
            values = loss_sum(self.X @ points) + 0.5 * self.n * self.sigma * (points**2).sum(axis=0)
            error = float(values.mean() - self.least) / self.at_zero
            trace.append((float(state.times.max()), max(error, 1e-16), exponent))
            if error < 0.1 * TARGET or not error < 1e6 or trace[-1][0] > LONGEST:
                return Result(time_below(trace), predicted, stages, observed_rate(trace))
            if t < check:
                continue
            theta, duals, gap = self.certify(stage, state, t)
            self.charge(state, 1.0, 2)
            check, margins = 2.0 * check, self.X @ theta
            outside = bool(((margins < stage.terms.low) | (margins > stage.terms.high)).any())
            if not outside and gap > begun / GAP_FACTOR:
                continue
            self.charge(state, passes, 2)
            found = self.in_metric(theta, gap)
            if outside or found.time <= TIME_SHARE * stage.time:
                self.charge(state, 0.0, 1)
                stage, work, begun, t, stages = found, later, gap, 0, stages + 1
                state = self.place(stage, theta, duals, state.times)
                check = self.first_check(stage, work, passes)


def time_below(trace: list[tuple[float, float, float]]) -> float:
    """Return the time from which a trace stays at or below the target, infinite if it ends above."""
    x, y, _ = np.array(trace).T
    last = int(np.flatnonzero(~(y <= TARGET))[-1])
    if last + 1 == y.size:
        return math.inf
    share = math.log(y[last] / TARGET) / math.log(y[last] / y[last + 1])
    return float(x[last] + share * (x[last + 1] - x[last]))


def observed_rate(trace: list[tuple[float, float, float]]) -> float:
    """Return the exponent by which the error fell below a thousandth, over the one that theory promises."""
    _, y, promised = np.array(trace).T
    first = int(np.flatnonzero(y > 1e-3)[-1])
    return float(math.log(y[first] / y[-1]) / (promised[-1] - promised[first]))
