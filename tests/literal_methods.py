"""NS-ADFS, block ADFS and the baselines in literal NumPy, line by line with their papers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from adfs.algorithms.interior_point import quadratic_pieces
from adfs.errors import InputError
from adfs.network import ChebyshevCoefficients, Network, lazy_gossip
from adfs.problem import LinearTerm, Problem
from adfs.problem.evaluation import loss_curvatures, loss_derivatives
from adfs.problem.losses import Loss, derivative
from adfs.problem.losses import value as loss_value
from adfs.problem.samples import Label, ShiftedLabel, label_at, labels_of
from adfs.problem.views import BoxedProblem
from adfs.theory import AugmentedGraph, BlockParameters, NonSmoothParameters
from adfs.theory.baselines import (
    AgdParameters,
    DsbaParameters,
    EsdacdParameters,
    ExtraParameters,
    MsdaParameters,
    PointSagaParameters,
)
from literal_adfs import AdfsState


class BoxedTerm(LinearTerm):
    """The term of one sample, its loss replaced by tangents outside an interval of margins."""

    def __init__(self, whole: LinearTerm, margins: np.ndarray, beta: float) -> None:
        super().__init__(whole.x, whole.label, whole.weight, whole.loss)
        shift = whole.label.shift if isinstance(whole.label, ShiftedLabel) else 0.0
        self.low, self.high, self.beta = float(margins[0]) - shift, float(margins[1]) - shift, beta

    @property
    def smoothness(self) -> float:
        return self.weight * self.beta * self.norm_squared

    def dual_prox(self, z: np.ndarray, step: float, smoothness: float) -> np.ndarray:
        """Bisect the derivative, which rises along the margins: u + (w/h − 1/β_j)ℓ'(u) − ζ/h."""
        scalar, h = float(self.x @ z) / self.norm_squared, step / self.norm_squared
        factor = self.weight / h - 1.0 / self.beta

        def slope(u: float) -> float:
            return u + factor * derivative(self.loss, u, self.label) - scalar / h

        # The slope rises with the margin: an end whose slope has the right sign is the solution.
        low, high = max(self.low, -1e3), min(self.high, 1e3)
        if slope(low) >= 0.0:
            high = low
        if slope(high) <= 0.0:
            low = high
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if slope(middle) > 0.0 else (middle, high)
        return self.weight * derivative(self.loss, 0.5 * (low + high), self.label) * self.x


class BoxedTerms(BoxedProblem):
    """A problem in boxes whose terms are objects, as the literal methods take them."""

    def term(self, row: int) -> BoxedTerm:
        whole = self.whole.term(row)
        assert isinstance(whole, LinearTerm)
        return BoxedTerm(whole, self.margins[row], float(self.boxed.curvature[row]))


class NsLagState(NamedTuple):
    """v (``velocity``) and u = A_t(x − v) (``momentum``) at every augmented node; both rest in idle nodes."""

    velocity: np.ndarray
    momentum: np.ndarray


def _non_smooth_parameters(graph: AugmentedGraph) -> NonSmoothParameters:
    if not isinstance(graph.parameters, NonSmoothParameters):
        raise InputError("NS-ADFS takes NonSmoothParameters")
    return graph.parameters


def _change(graph: AugmentedGraph, edge: int, v: np.ndarray, y: np.ndarray, increment: float) -> np.ndarray:
    """Return v_j⁺ − v_j at the far end j of an edge, the opposite of v_i⁺ − v_i. Σ⁻¹ is 0 at tips."""
    i, j = graph.edges[edge]
    eta = increment * graph.mu_squared[edge] / graph.probability[edge]
    inverse = graph.inverse_sigma
    pull = eta * (y[i] * inverse[i] - y[j] * inverse[j])
    if graph.is_virtual(edge):
        return np.asarray(graph.term(edge).dual_prox(v[j] + pull, eta, graph.tip_curvature(edge)) - v[j])
    return np.asarray(pull)


class LiteralNsAdfs:
    """NS-ADFS with x, y and v at every augmented node.

    Algorithm
        y = (1 − α_t)x + α_t v with α_t = a_{t+1}/A_{t+1}; v⁺ = v − a_{t+1}η_e W_eΣ⁻¹y with η_e =
        μ_e²/p_e, the tip then taking prox_{a_{t+1}η_e f*}; x⁺ = y + (α_t R_e/p_e)(v⁺ − v), with α_t and
        not ρ (erratum 8).
    Guarantee
        Theorem 3 with the bound of erratum 9: E F*(x_t) − F* ≤ (‖v_0 − λ*‖²_{A⁺A} + 2A_0Δ_0)/(2A_t).
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.parameters = _non_smooth_parameters(graph)

    def start(self) -> AdfsState:
        """Return x_0 = v_0 = 0."""
        zero = np.zeros((self.graph.n_augmented, self.graph.problem.n_features))
        return AdfsState(zero, zero)

    def step(self, state: AdfsState, edge: int, t: int) -> AdfsState:
        """Return the state after event t."""
        weight, increment = self.parameters.weight_at(t), self.parameters.increment_at(t)
        alpha = increment / (weight + increment)
        i, j = self.graph.edges[edge]
        y = (1 - alpha) * state.x + alpha * state.v
        change = _change(self.graph, edge, state.v, y, increment)
        following = state.v.copy()
        following[i] -= change
        following[j] += change
        ratio = alpha * self.graph.step_resistance[edge] / self.graph.probability[edge]
        return AdfsState(y + ratio * (following - state.v), following)


class VelocityNsAdfs:
    """NS-ADFS in the variables v and u = A_t(x − v): an event touches its two ends and nothing else.

    Algorithm
        y = v + u/A_{t+1}; with δ the change of v at an end, v ← v + δ and u ← u + (a_{t+1}R_e/p_e −
        A_{t+1})δ.
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.parameters = _non_smooth_parameters(graph)

    def start(self) -> NsLagState:
        """Return v = u = 0."""
        zero = np.zeros((self.graph.n_augmented, self.graph.problem.n_features))
        return NsLagState(zero, zero.copy())

    def step(self, state: NsLagState, edge: int, t: int) -> NsLagState:
        """Return the state after event t."""
        following, increment = self.parameters.weight_at(t + 1), self.parameters.increment_at(t)
        i, j = self.graph.edges[edge]
        velocity, momentum = state.velocity.copy(), state.momentum.copy()
        y = velocity + momentum / following
        change = _change(self.graph, edge, velocity, y, increment)
        ratio = increment * self.graph.step_resistance[edge] / self.graph.probability[edge] - following
        for k, sign in ((i, -1.0), (j, 1.0)):
            velocity[k] += sign * change
            momentum[k] += ratio * sign * change
        return NsLagState(velocity, momentum)

    def iterates(self, state: NsLagState, t: int) -> AdfsState:
        """Return x_t and v_t of all nodes after t events."""
        return AdfsState(state.velocity + state.momentum / self.parameters.weight_at(t), state.velocity)


class BlockState(NamedTuple):
    """x and v of the centres (n, d), and of the tips (N,) as multiples of their rows."""

    x: np.ndarray
    v: np.ndarray
    dual_x: np.ndarray
    dual_v: np.ndarray


class LiteralBlockAdfs:
    """The same, literally: x, y and v mixed at every step, on dense rows.

    Algorithm
        y = (x + ρv)/(1 + ρ), w = (1 − ρ)v + ρy. Gossip: Δ = −(ρ/(σ_A p_comm)) Lap D⁻¹y at the centres, χ =
        ρ/p_comm. Samples: at each node the step of ADFS with p_ij = p_comp π_ij. Then v⁺ = w + Δ and x⁺ = y +
        χΔ.
    """

    def __init__(self, problem: Problem, network: Network, parameters: BlockParameters) -> None:
        self.problem = problem
        self.smoothness = problem.smoothness
        self.laplacian = network.laplacian().toarray()
        self.parameters = parameters

    def start(self) -> BlockState:
        """Return zero everywhere."""
        n, d, m = self.problem.n_nodes, self.problem.n_features, self.problem.n_samples
        return BlockState(np.zeros((n, d)), np.zeros((n, d)), np.zeros(m), np.zeros(m))

    def step(self, state: BlockState, samples: np.ndarray | None) -> BlockState:
        """Return the state after a gossip round (``samples`` None) or after one sample at every node."""
        p, rho = self.parameters, self.parameters.contraction
        y, dual_y = (state.x + rho * state.v) / (1 + rho), (state.dual_x + rho * state.dual_v) / (1 + rho)
        w, dual_w = (1 - rho) * state.v + rho * y, (1 - rho) * state.dual_v + rho * dual_y
        sigma = self.problem.sigma[:, None]
        if samples is None:
            change = -(rho / (p.dual_curvature * p.p_comm)) * (self.laplacian @ (y / sigma))
            return BlockState(y + rho / p.p_comm * change, w + change, dual_y, dual_w)
        x, v, dual_x, dual_v = y.copy(), w.copy(), dual_y.copy(), dual_w.copy()
        for node, row in enumerate(samples):
            if row < 0:
                continue
            term, smoothness = self.problem.term(int(row)), self.smoothness[row]
            share = np.sqrt(1 + smoothness / self.problem.sigma[node]) / p.root_sums[node]
            probability = (1 - p.p_comm) * share
            eta = rho * p.virtual_weight * smoothness / (p.dual_curvature * probability)
            pull = y[node] / self.problem.sigma[node] - dual_y[row] * term.x / smoothness
            moved = term.dual_prox(dual_w[row] * term.x + eta * pull, eta, smoothness)
            change = float(moved @ term.x) / term.norm_squared - dual_w[row]
            chi = rho / probability
            dual_v[row] += change
            dual_x[row] += chi * change
            v[node] -= change * term.x
            x[node] -= chi * change * term.x
        return BlockState(x, v, dual_x, dual_v)


def literal_agd(problem: Problem, parameters: AgdParameters, rounds: int) -> np.ndarray:
    """Return θ after some rounds on one machine, (d,)."""
    theta = y = np.zeros(problem.n_features)
    for _ in range(rounds):
        before, theta = theta, y - parameters.step * problem.gradient(y)
        y = theta + parameters.momentum * (theta - before)
    return theta


def literal_extra(problem: Problem, network: Network, parameters: ExtraParameters, rounds: int) -> np.ndarray:
    """Return every node's iterate after some rounds, (n, d), as the paper writes them.

    x¹ = Wx⁰ − α∇f(x⁰), then x⁺⁺ = (I + W)x⁺ − (I + W)/2·x − α(∇f(x⁺) − ∇f(x)).
    """
    mixing = 2.0 * lazy_gossip(network, parameters.laplacian_max).toarray()

    def gradients(x: np.ndarray) -> np.ndarray:
        found = []
        for shard, sigma, theta in zip(problem.shards, problem.sigma, x, strict=True):
            slopes = shard.weights * loss_derivatives(
                problem.loss, shard.X @ theta, labels_of(problem.loss, shard.y, shard.offset)
            )
            found.append(shard.X.T @ slopes + sigma * theta)
        return np.array(found)

    before = np.zeros((problem.n_nodes, problem.n_features))
    x = (mixing - np.eye(problem.n_nodes)) @ before - parameters.step * gradients(before)
    for _ in range(rounds - 1):
        change = parameters.step * (gradients(x) - gradients(before))
        before, x = x, mixing @ x - 0.5 * mixing @ before - change
    return x


def literal_dsba(
    problem: Problem, network: Network, parameters: DsbaParameters, draws: list[np.ndarray]
) -> np.ndarray:
    """Return every node's z after the rounds whose samples are ``draws``, (n, d); whole vectors in the table.

    Each backward step (1 + ασ)z⁺ + αB(z⁺) = ψ is solved by bisection, as the scalar equation it is on the
    line of its sample.
    """
    X = problem.X.toarray() if problem.sparse else problem.X
    n, d = problem.n_nodes, problem.n_features
    mixing = lazy_gossip(network, parameters.laplacian_max).toarray()
    sizes = np.bincount(problem.node_of_row[problem.active], minlength=n)
    alpha, loss = parameters.step, problem.loss
    z = before = np.zeros((n, d))
    table, change = np.zeros((problem.n_samples, d)), np.zeros((n, d))
    for samples in draws:
        mixed, following = mixing @ (2 * z - before), np.zeros((n, d))
        for i, row in enumerate(samples):
            shrink, m = 1.0 + alpha * problem.sigma[i], int(sizes[i])
            psi = mixed[i] + alpha * problem.sigma[i] * z[i]
            if row < 0:
                following[i] = psi / shrink
                continue
            psi = psi + alpha * ((m - 1) / m * change[i] + table[row])
            x, weight = X[row], m * problem.weights[row]
            q, target = float(x @ x), float(x @ psi) / shrink
            label = label_at(problem.labels, row)
            pull = weight * literal_prox_slope(loss, target, alpha * weight * q / shrink, label) * x
            following[i] = (psi - alpha * pull) / shrink
            change[i] = pull - table[row]
            table[row] = pull
        before, z = z, following
    return z


def literal_point_saga(problem: Problem, parameters: PointSagaParameters, samples: np.ndarray) -> np.ndarray:
    """Return x after the draws ``samples``, (d,): whole vectors in the table, each prox by bisection."""
    X = problem.X.toarray() if problem.sparse else problem.X
    gamma, mu, loss = parameters.step, parameters.curvature, problem.loss
    x = np.zeros(problem.n_features)
    table = np.zeros((problem.n_samples, problem.n_features))
    if not parameters.zero_table:
        for row in np.flatnonzero(problem.active):
            table[row] = problem.weights[row] * derivative(loss, 0.0, label_at(problem.labels, row)) * X[row]
    mean = table.sum(axis=0) / parameters.n_terms
    for row in samples:
        z, shrink = x + gamma * (table[row] - mean), 1.0 + gamma * mu
        a, weight, b = X[row], float(problem.weights[row]), label_at(problem.labels, row)
        c, target = gamma * weight * float(a @ a) / shrink, float(a @ z) / shrink
        pull = weight * literal_prox_slope(loss, target, c, b) * a
        x = (z - gamma * pull) / shrink
        mean = mean + (pull - table[row]) / parameters.n_terms
        table[row] = pull
    return x


def literal_dual_gradient(problem: Problem, node: int, point: np.ndarray) -> np.ndarray:
    """Return ∇f_i*(x) to rounding, shape (d,): Newton's method in NumPy, the twin of the kernel."""
    shard = problem.shards[node]
    rows, y, w = shard.X, labels_of(problem.loss, shard.y, shard.offset), shard.weights
    X = rows.toarray() if problem.sparse else rows
    sigma, theta = problem.sigma[node], point / problem.sigma[node]

    def value(at: np.ndarray) -> float:
        values = [loss_value(problem.loss, u, label_at(y, j)) for j, u in enumerate(X @ at)]
        return float(np.array(values) @ w + 0.5 * sigma * at @ at - point @ at)

    for _ in range(1000):
        gradient = X.T @ (w * loss_derivatives(problem.loss, X @ theta, y)) + sigma * theta - point
        hessian = X.T @ ((w * loss_curvatures(problem.loss, X @ theta, y))[:, None] * X) + sigma * np.eye(
            point.size
        )
        move, size = np.linalg.solve(hessian, -gradient), 1.0
        decrease, scale = float(-gradient @ move), 1.0 + abs(value(theta))
        # Near the minimum the value resolves no decrease, and whole steps do no harm.
        while decrease > 1e-10 * scale and value(theta + size * move) > value(theta) - 0.1 * size * decrease:
            size *= 0.5
        theta = theta + size * move
        if decrease <= 1e-24 * scale:
            break
    return np.asarray(theta)


def chebyshev_gossip(
    laplacian: np.ndarray, values: np.ndarray, coefficients: ChebyshevCoefficients
) -> np.ndarray:
    """Apply the accelerated gossip P(Lap) of MSDA to Θ, one row per node.

    With W = Lap: a_0 = 1, a_1 = c2, X_0 = Θ, X_1 = c2 (I − c3 W)Θ, then a_{k+1} = 2 c2 a_k − a_{k−1} and
    X_{k+1} = 2 c2 (I − c3 W) X_k − X_{k−1}; the result is Θ − X_K/a_K. It vanishes at agreement, and on the
    rest its eigenvalues lie within 2 c1^K/(1 + c1^{2K}) of 1.
    """
    if coefficients.rounds == 1:
        # one round is c3 W Θ whatever γ is; at γ = 1, c2 would be a division by zero
        return np.asarray(coefficients.step * (laplacian @ values))
    stretch, step = coefficients.stretch, coefficients.step
    scale_before, scale = 1.0, stretch
    before, current = values, stretch * (values - step * (laplacian @ values))
    for _ in range(coefficients.rounds - 1):
        before, current = current, 2 * stretch * (current - step * (laplacian @ current)) - before
        scale_before, scale = scale, 2 * stretch * scale - scale_before
    return np.asarray(values - current / scale)


def literal_msda(problem: Problem, network: Network, parameters: MsdaParameters, rounds: int) -> np.ndarray:
    """Return every node's θ after some rounds, (n, d): dense and slow, the twin of :class:`MsdaProcess`."""
    laplacian = network.laplacian().toarray()
    x = np.zeros((problem.n_nodes, problem.n_features))
    y, theta = x, x
    for _ in range(rounds):
        theta = np.array([literal_dual_gradient(problem, i, x[i]) for i in range(problem.n_nodes)])
        before, y = y, x - parameters.step * chebyshev_gossip(laplacian, theta, parameters.chebyshev)
        x = (1.0 + parameters.momentum) * y - parameters.momentum * before
    return theta


class LiteralEsdacd:
    """The same in the variables of the paper: y and v of every node, mixed at every event.

    Algorithm
        z_r = ∇f_r*(y_r) at both ends; [v; y] ← B[v; y] at every node, B = [[1 − ϑ, ϑ], [δ, 1 − δ]], δ =
        ϑ(1 − ϑ)/(1 + ϑ); at the ends v moves by −(ϑw/(pσ_A))(z_r − z_other), y by −(w/(1 +
        ϑ))(1/(w(1/σ_k + 1/σ_l)) + ϑ²/(pσ_A)) times the same.
    """

    def __init__(self, problem: Problem, network: Network, parameters: EsdacdParameters) -> None:
        self.problem = problem
        self.edges = network.edges
        self.parameters = parameters

    def step(self, v: np.ndarray, y: np.ndarray, edge: int) -> tuple[np.ndarray, np.ndarray]:
        """Return v and y after an event, (n, d) each."""
        q, theta = self.parameters, self.parameters.contraction
        i, j = self.edges[edge]
        change = literal_dual_gradient(self.problem, i, y[i]) - literal_dual_gradient(self.problem, j, y[j])
        w, p = q.edge_weights[edge], q.edge_probability[edge]
        delta = theta * (1 - theta) / (1 + theta)
        v, y = (1 - theta) * v + theta * y, delta * v + (1 - delta) * y
        of_v = theta * w / (p * q.dual_curvature)
        of_y = w / (1 + theta) * (1 / (w * q.edge_inverse_sigma[edge]) + theta**2 / (p * q.dual_curvature))
        for node, sign in ((i, 1.0), (j, -1.0)):
            v[node] -= sign * of_v * change
            y[node] -= sign * of_y * change
        return v, y


def literal_prox_slope(loss: Loss, target: float, step: float, b: Label) -> float:
    """Return ℓ'(u) at the root of u + step·ℓ'(u) = target, by bisection."""

    def excess(u: float) -> float:
        return u + step * derivative(loss, u, b) - target

    reach = 1.0
    while excess(target - reach) > 0.0 or excess(target + reach) < 0.0:
        reach *= 2.0
    low, high = target - reach, target + reach
    for _ in range(200):
        u = 0.5 * (low + high)
        low, high = (low, u) if excess(u) > 0.0 else (u, high)
    return derivative(loss, 0.5 * (low + high), b)


def literal_dual_pass(
    problem: Problem, order: np.ndarray, total: float, center: np.ndarray, duals: np.ndarray
) -> np.ndarray:
    """Return the dual variables after one pass, by bisection; ``center`` is κz, (d,)."""
    X = problem.X.toarray() if problem.sparse else problem.X
    duals = duals.copy()
    for j in order:
        weight, label = float(problem.weights[j]), label_at(problem.labels, j)
        without = X[j] @ (center - X.T @ duals + X[j] * duals[j]) / total
        share = weight * (X[j] @ X[j]) / total
        duals[j] = weight * literal_prox_slope(problem.loss, without, share, label)
    return duals


def literal_newton(problem: Problem, rounds: int) -> np.ndarray:
    """Return θ after some rounds on one machine where whole steps are taken, (d,)."""
    theta = np.zeros(problem.n_features)
    for _ in range(rounds):
        theta = theta - np.linalg.solve(problem.hessian(theta), problem.gradient(theta))
    return theta


def _predicted(X: np.ndarray, matrix: np.ndarray, system: tuple[Any, ...], low: Any, high: Any) -> Any:
    """Return the changes of distances and forces at the bounds, and of θ, for given new forces."""
    below, above, to_low, to_high, diagonal, stationary, tied = system
    right = -stationary + low - to_low - high + to_high
    turn = np.linalg.solve(matrix, -tied - X.T @ (right / diagonal))
    move = (right + X @ turn) / diagonal
    forces = low - to_low - to_low / below * move, high - to_high + to_high / above * move
    return (move, -move, *forces), turn


def _longest(state: tuple[np.ndarray, ...], changes: tuple[np.ndarray, ...]) -> float:
    """Return the longest step, at most 1, that keeps everything positive."""
    ratios = [-part[d < 0.0] / d[d < 0.0] for part, d in zip(state, changes, strict=True)]
    return min(1.0, *(float(ratio.min(initial=1.0)) for ratio in ratios))


def literal_interior_point(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the dual variables (N,) and θ (d,) after each step of Mehrotra's method on one machine.

    The quadratic program is cᵀs + sᵀBs/2 + ‖Xᵀs‖²/(2σ) over low ≤ s ≤ high, an s per piece of a conjugate.
    """
    pieces = quadratic_pieces(problem)
    assert pieces is not None
    X = problem.X[pieces.row].toarray() if problem.sparse else problem.X[pieces.row]
    sigma, theta = problem.total_sigma, np.zeros(problem.n_features)
    half = 0.5 * (pieces.high - pieces.low)
    force = np.full(half.size, 1.0 + float(np.abs(pieces.slope).max()))
    state: tuple[np.ndarray, ...] = (half, half, force, force)
    while True:
        below, above, to_low, to_high = state
        s = np.where(below < above, pieces.low + below, pieces.high - above)
        diagonal = pieces.curvature + to_low / below + to_high / above
        stationary = pieces.slope + pieces.curvature * s - X @ theta - to_low + to_high
        matrix = X.T @ (X / diagonal[:, None]) + sigma * np.eye(theta.size)
        system = (*state, diagonal, stationary, sigma * theta + X.T @ s)
        guess, _ = _predicted(X, matrix, system, 0.0, 0.0)
        size = _longest(state, guess)
        ahead = [part + size * change for part, change in zip(state, guess, strict=True)]
        before, after = below @ to_low + above @ to_high, ahead[0] @ ahead[2] + ahead[1] @ ahead[3]
        target = before / (2 * s.size) * (after / before) ** 3
        low, high = (target - guess[0] * guess[2]) / below, (target - guess[1] * guess[3]) / above
        changes, turn = _predicted(X, matrix, system, low, high)
        size = 0.995 * _longest(state, changes)
        state = tuple(part + size * change for part, change in zip(state, changes, strict=True))
        theta = theta + size * turn
        total = np.zeros(problem.n_samples)
        np.add.at(
            total, pieces.row, np.where(state[0] < state[1], pieces.low + state[0], pieces.high - state[1])
        )
        yield total, theta
