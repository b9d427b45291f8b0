r"""Stable rank and spectral norm of weights, without a singular value decomposition.

$\mathrm{srank}(W) = \|W\|_F^2 / \|W\|_2^2$ lies between 1 and the rank. It needs one number of the spectrum, the top
eigenvalue $\lambda$ of $W^\top W$, and that comes from products with $W$ alone. For a unit vector $x$ with
$\theta = \|Wx\|^2$ and relative residual $\rho = \|W^\top W x - \theta x\| / \theta$,

$$\theta \le \lambda, \qquad \text{and some eigenvalue lies within } \rho\,\theta \text{ of } \theta.$$

`stable_rank` and `spectral_norm` are for scans: Lanczos iteration from a random start in float32, with $W^\top W$
itself where many products are needed, then in float64 until $\rho$ is verified; a matrix that does not get there, or
is small, is decomposed. `power_step` is for live use: a few products from the vector of the last call, with the
residual that they leave.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from joma.measure.tensors import required_tensor, tensor_with_axes, working_dtype

MATRIX_AXES = 2
SMALL = 256
"""Up to this length of the shorter side the whole Gram matrix is decomposed: faster than iterating, and batched."""
SEARCH_STEPS = 256
"""Most float32 products before a matrix is decomposed after all; a Gaussian 4096×1024 matrix takes 64."""
SEARCH_RESIDUAL = 1e-8
"""Where the float32 recurrence stops: below its rounding, or a top value 1e-6 above a cluster could be missed."""
EARLY_STEPS = 16
"""Products of that search after which the Gram matrix is worth its price; weights of trained networks need no more."""
GRAM_SIDE = 1024
"""Longest shorter side for which it is: its price grows with that side, to some 20 to 60 products at this one."""
GRAM_ASPECT = 2
"""Least ratio of the sides for which it is: of a square matrix, products with the Gram matrix are hardly cheaper."""
GRAM_STRIP = 128  # rows of the Gram matrix that are computed at once
VERIFY_STEPS = 24  # most float64 products after that
VERIFIED_RESIDUAL = 1e-6  # residual in float64 at which the answer is taken: the accuracy promised
CHECK_EVERY = 8  # steps between two looks at the residual of the search
CHUNK_BYTES = 2**21
"""On a CPU rows are multiplied in chunks of this size, which stay in its cache for both products with them."""
GPU_CHUNK_BYTES = 2**28  # on a GPU, where starting a kernel takes longer than the product
SAFE_EXPONENT = 30  # matrices whose largest entry is outside 2^±this are rescaled, so that squares stay inside float32
LIVE_STEPS = 3
"""Steps of a live estimate: four products. One step would follow the norm, and miss a direction that overtakes."""
NUM_SQUARINGS = 30  # of a Gram matrix on a GPU: leaves the top eigenvalue within 2^-30 log n, 6e-9 for 256 columns
NORMALISE_EVERY = 5
"""Squarings after which the trace is made 1 again: until then an eigenvalue of 1/256 falls to 2^-256, no lower."""
ROUNDING_UNITS = 8
"""Rounding of a product with W, in units of its precision, measured up to 4096 columns; part of each live residual."""
TINY = torch.finfo(torch.float64).tiny
"""Stands in for a length of zero where a zero vector is normalised, and leaves it zero."""
SAFE_SQUARES = (1e-20, 1e30)
"""Squared norms between which products in float32 neither underflow nor overflow; outside, the matrix is rescaled."""
RIDGE = 1e-13
"""Added to products of rows of length 1 before Cholesky's decomposition: above the rounding of 256 such rows."""
SEED = 2310_00535  # of the random start; any fixed one makes the measure a function of its input


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerEstimate:
    """What a few products say about the spectral norm, and the vector to start from next time."""

    norm: Float[Tensor, "*batch"]
    r"""$\sigma = \|Wx\|$, never above the spectral norm but for rounding; on the CPU, as is the residual."""
    vector: Float[Tensor, "*batch n"]  # the unit vector x on the side of W's columns: pass it to the next call
    residual: Float[Tensor, "*batch"]
    r"""$\|W^\top W x - \sigma^2 x\| / \sigma^2$, rounding included: some singular value is within that part of σ."""


class Norms(NamedTuple):
    """What the largest singular value of each matrix says of it, in float64."""

    spectral: Float[Tensor, "*batch"]
    stable_rank: Float[Tensor, "*batch"]


def norms(w: Float[Tensor, "*batch m n"]) -> Norms:
    """Return `spectral_norm` and `stable_rank` of each matrix, for the price of one of them."""
    matrices, scale, broken = _scaled(w)
    top = _top_eigenvalues(matrices)
    squares = torch.linalg.vector_norm(matrices.to(working_dtype(matrices)), dim=-1).double().square().sum(dim=-1)
    found = torch.stack((top.sqrt() * scale, squares / top))  # 0/0 is NaN: no direction stands out
    return Norms(*found.masked_fill(broken, torch.nan).reshape(2, *w.shape[:-2]))


def stable_rank(w: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""Stable rank $\|W\|_F^2 / \|W\|_2^2$ of each matrix, to 1e-6 relative, in float64.

    NaN where there is none: a zero matrix, or one with NaN or infinite entries (`why_undefined` words it).

    >>> stable_rank(torch.eye(3))
    tensor(3., dtype=torch.float64)
    """
    return norms(w).stable_rank


def spectral_norm(w: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""Largest singular value $\|W\|_2$ of each matrix, to 1e-6 relative, in float64; NaN where entries are not finite.

    >>> spectral_norm(torch.diag(torch.tensor([3.0, -4.0])))
    tensor(4., dtype=torch.float64)
    """
    return norms(w).spectral


def why_undefined(w: Float[Tensor, "m n"]) -> str:
    """Say why a matrix has no stable rank, or nothing.

    >>> why_undefined(torch.zeros(2, 2))
    'every entry is 0'
    """
    num_bad = int((~torch.isfinite(required_tensor("w", w))).sum())
    if num_bad:
        return f"{num_bad} of {w.numel()} entries are NaN or infinite"
    return "" if w.any() else "every entry is 0"


def power_step(
    w: Float[Tensor, "*batch m n"] | Sequence[Float[Tensor, "m n"]],
    v: Float[Tensor, "*batch n"] | None = None,
    *,
    num_steps: int = LIVE_STEPS,
) -> PowerEstimate:
    r"""Improve an estimate of the spectral norm by `num_steps` steps from v; `num_steps` + 1 products with WᵀW.

    The best vector of the Krylov space $\{v, W^\top W v, \dots\}$ is taken, which is never worse than as many power
    iterations. While weights move little, a few steps a call follow them. Without v the start is random: then give it
    some 64 steps, and read off the residual whether they were enough. A sequence of matrices of one shape is a batch
    that nobody has to copy together. A GPU is waited for once.

    The residual speaks of the direction that is followed. When another one overtakes it, the norm is too small for some
    calls (by 1 % where a new direction grows by 5 % a call) until the steps have turned the vector.

    Where W has NaN or infinite entries, norm and residual are NaN; where Wv is 0, as for a zero matrix, the norm is 0
    and the residual NaN: nothing was learned. `vector` is a fresh random start then, so that the next call recovers.

    >>> power_step(torch.diag(torch.tensor([2.0, 1.0, 0.5])), torch.tensor([1.0, 0.1, 0.1])).norm
    tensor(2.0000, dtype=torch.float64)
    """
    matrices, batch = _matrices(w)
    if num_steps < 1:
        raise ValueError(f"`num_steps` must be at least 1, got {num_steps}. One step needs two products.")
    shape = (*batch, matrices[0].shape[1])
    if v is not None and required_tensor("v", v).shape != shape:
        raise ValueError(
            f"`v` must have a number for each column of `w`, shape {shape}, got {tuple(v.shape)}. "
            "Pass the `vector` of the last estimate of the same weights."
        )
    start = _random_start(shape, matrices[0].device) if v is None else v.detach()
    top = _within_range(matrices, start.reshape(len(matrices), -1), num_steps)
    vector, usable = top.vector, top.value > 0
    if not bool(usable.all()):
        fresh = _random_start(shape, vector.device).reshape(vector.shape)
        vector = torch.where(usable.to(vector.device)[:, None], vector, fresh)
    rounding = ROUNDING_UNITS * torch.finfo(working_dtype(matrices[0])).eps
    return PowerEstimate(
        norm=top.value.sqrt().reshape(batch),
        vector=vector.reshape(shape),
        residual=(top.residual + rounding).reshape(batch),
    )


def _matrices(w: Tensor | Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ...]]:
    """Take a batch apart into its matrices, and say how it was shaped."""
    if isinstance(w, Tensor):
        _refuse_unmeasurable(w)
        return list(w.detach().reshape(-1, *w.shape[-2:]).unbind()), tuple(w.shape[:-2])
    if hasattr(w, "__array__") or not isinstance(w, Iterable):
        required_tensor("w", w)
    shapes = {tuple(required_tensor(f"w[{i}]", matrix).shape) for i, matrix in enumerate(w)}
    if len(shapes) != 1:
        raise ValueError(
            f"`w` must be matrices of one shape, got {sorted(shapes)}. Measure the others by another call."
        )
    for matrix in w:
        _refuse_unmeasurable(matrix)
    return [matrix.detach() for matrix in w], (len(w),)


def _within_range(matrices: list[Tensor], start: Float[Tensor, "B n"], num_steps: int) -> "_Ritz":
    """Iterate in working precision, once more on rescaled matrices where squares may have left its range."""
    iterate = partial(_lanczos, max_steps=num_steps + 1)
    products = _stacked_products if _is_gpu(start) else _products
    top = iterate(products([m.to(working_dtype(m)) for m in matrices]), start)
    low, high = SAFE_SQUARES
    for i in (~((low < top.value) & (top.value < high))).nonzero()[:, 0].tolist():
        size = _largest_entry(matrices[i])
        if bool((size > 0) & torch.isfinite(size)):
            again = iterate(_products([matrices[i].double() / size]), start[i : i + 1])
            top.value[i] = again.value[0] * size.item() ** 2
            top.residual[i], top.vector[i] = again.residual[0], again.vector[0]
    return top


def qk_cores(
    w_q: Float[Tensor, "rows_q d"], w_k: Float[Tensor, "rows_k d"], num_heads: int, num_kv_heads: int | None = None
) -> Float[Tensor, "H r r"]:
    r"""Small matrices with the singular values of $W_Q^{(h)\top} W_K^{(h)}$ for each query head, in float64.

    No d×d matrix is formed: with $W^{(h)\top} = QR$ it is $R_Q R_K^\top$, of the size of one head. The 1/√width of the
    logits is not part of it. NaN where entries are not finite.

    Args:
        w_q: rows are heads times their width, as in `torch.nn.Linear`.
        w_k: the same for keys.
        num_heads: query heads.
        num_kv_heads: key heads; consecutive query heads share one where there are fewer.

    >>> spectral_norm(qk_cores(torch.eye(4), 2 * torch.eye(4), num_heads=2))
    tensor([2., 2.], dtype=torch.float64)
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"Key heads must divide query heads, got {num_kv_heads} and {num_heads}.")
    for name, w in (("w_q", w_q), ("w_k", w_k)):
        tensor_with_axes(name, w, "rows d")
    width, rest = divmod(w_q.shape[0], num_heads)
    if rest or w_k.shape[0] != width * num_kv_heads or w_q.shape[1] != w_k.shape[1] or width == 0:
        raise ValueError(
            f"`w_q` must be ({num_heads}·width, d) and `w_k` ({num_kv_heads}·width, d), "
            f"got {tuple(w_q.shape)} and {tuple(w_k.shape)}. Split fused projections, and transpose those of Conv1D."
        )
    r_q = _triangles(w_q, width)
    r_k = _triangles(w_k, width).repeat_interleave(num_heads // num_kv_heads, dim=0)
    return r_q @ r_k.mT


def _triangles(w: Float[Tensor, "rows d"], width: int) -> Float[Tensor, "heads r width"]:
    """R of the QR decomposition of each head's transpose; NaN for heads whose entries are not finite."""
    heads = w.detach().double().reshape(-1, width, w.shape[1])
    broken = ~torch.isfinite(heads).flatten(1).all(dim=1)
    heads = heads.masked_fill(broken[:, None, None], 0.0)
    r = _triangles_of_products(heads) if _is_gpu(w) else torch.linalg.qr(heads.mT, mode="r").R
    return r.masked_fill(broken[:, None, None], torch.nan)


def _triangles_of_products(heads: Float[Tensor, "heads width d"]) -> Float[Tensor, "heads width width"]:
    """The same R by Cholesky's decomposition of the rows' products, which a GPU does for all heads at once.

    Rows of length 1, so that short ones keep their digits, and `RIDGE` against rows that depend on each other: it
    moves no eigenvalue of RᵀR by more.
    """
    length = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
    rows = heads / length.clamp(min=TINY)
    ridge = RIDGE * torch.eye(heads.shape[1], dtype=heads.dtype, device=heads.device)
    lower, _ = torch.linalg.cholesky_ex(torch.baddbmm(ridge, rows, rows.mT))
    return (lower * length).mT


class _Ritz(NamedTuple):
    """The top Ritz pair of each Krylov space and its relative residual; vectors on their device, numbers on the CPU."""

    value: Float[Tensor, " B"]
    vector: Float[Tensor, "B n"]
    residual: Float[Tensor, " B"]


def _lanczos(
    product: Callable[[Float[Tensor, "B n"]], Float[Tensor, "B n"]],
    start: Float[Tensor, "B n"],
    *,
    max_steps: int,
    tolerance: float = 0.0,
    check_every: int = SEARCH_STEPS,
) -> _Ritz:
    """Top Ritz pairs of WᵀW after `max_steps` products, or at the check where every residual is within `tolerance`.

    All but the product is in float64 with every new vector made orthogonal to all old ones twice: no copy of a
    converged direction comes back, and the recurrence stays true to the products.
    """
    max_steps = min(max_steps, start.shape[1])
    basis = start.new_empty((len(start), max_steps + 1, start.shape[1]), dtype=torch.float64)
    basis[:, 0] = normalize(start.double(), dim=-1)
    along, across = [], []
    for step in range(1, max_steps + 1):
        old = basis[:, :step]
        y = product(basis[:, step - 1])[:, None]
        components = torch.bmm(y, old.mT)  # the last of them is the newest vector's own
        y = torch.baddbmm(y, components, old, alpha=-1)
        y = torch.baddbmm(y, torch.bmm(y, old.mT), old, alpha=-1)
        size = torch.linalg.vector_norm(y, dim=-1)
        torch.div(y[:, 0], size.clamp(min=TINY), out=basis[:, step])
        along.append(components[:, 0, -1])
        across.append(size[:, 0])
        if step == max_steps or step % check_every == 0:
            top = _top_pair(torch.stack((*along, *across), dim=1).cpu(), old)
            if not bool((top.residual > tolerance).any()):  # zero and broken matrices leave NaN
                break
    return top


def _top_pair(recurrence: Float[Tensor, "B numbers"], basis: Float[Tensor, "B k n"]) -> _Ritz:
    """Decompose the tridiagonal matrix of the recurrence, on the CPU; its last number leads out of the basis."""
    alpha, beta = recurrence.chunk(2, dim=1)
    tridiagonal = torch.diag_embed(alpha)
    tridiagonal.diagonal(offset=-1, dim1=-2, dim2=-1).copy_(beta[:, :-1])
    broken = ~torch.isfinite(recurrence).all(dim=-1)  # eigh refuses them for the whole batch
    theta, s = torch.linalg.eigh(tridiagonal.masked_fill(broken[:, None, None], 0.0))  # reads the lower triangle
    value, weights = theta[:, -1].masked_fill(broken, torch.nan), s[..., -1]
    vector = normalize((weights[:, None].to(basis.device) @ basis)[:, 0], dim=-1)
    return _Ritz(value=value, vector=vector, residual=beta[:, -1] * weights[:, -1].abs() / value)


def _products(
    matrices: Sequence[Float[Tensor, "m n"]], dtype: torch.dtype | None = None
) -> Callable[[Float[Tensor, "B n"]], Float[Tensor, "B n"]]:
    """WᵀWv of each matrix, computed in `dtype` (that of the matrices when None) and returned in float64."""
    dtype = dtype or matrices[0].dtype

    def product(v: Tensor) -> Tensor:
        return torch.stack([_gram_product(w, x) for w, x in zip(matrices, v.to(dtype), strict=True)]).double()

    return product


def _stacked_products(
    matrices: Sequence[Float[Tensor, "m n"]],
) -> Callable[[Float[Tensor, "B n"]], Float[Tensor, "B n"]]:
    """The same from one copy of all matrices, for a GPU: two calls a step, and not two for each of them.

    In float64, where it rounds no operand.
    """
    stacked = torch.stack(list(matrices)).double()

    def product(v: Tensor) -> Tensor:
        return torch.bmm(stacked.mT, torch.bmm(stacked, v[..., None]))[..., 0]

    return product


def _gram_product(w: Float[Tensor, "m n"], v: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """WᵀWv in the precision of v; products of a matrix and a vector round no operand on a GPU, as those of two may."""
    if w.dtype == v.dtype and _is_gpu(w):
        return (w @ v) @ w
    total = torch.zeros_like(v)
    # Rows come in chunks that stay in the cache for both products: each is read from memory once, not twice.
    for chunk in _upcast_chunks(w, v.dtype):
        total.addmv_(chunk.mT, chunk @ v)
    return total


def _gram_matrix(w: Float[Tensor, "m n"]) -> Float[Tensor, "n n"]:
    """WᵀW; it is symmetric, so only strips of rows up to the diagonal are computed."""
    n = w.shape[1]
    gram = w.new_zeros((n, n))
    for first in range(0, n, GRAM_STRIP):
        last = min(first + GRAM_STRIP, n)
        torch.mm(w[:, first:last].mT, w[:, :last], out=gram[first:last, :last])
    return gram.tril_() + gram.tril(-1).mT


def _upcast_chunks(w: Float[Tensor, "*batch m n"], dtype: torch.dtype) -> Iterator[Float[Tensor, "*batch rows n"]]:
    """Rows of w in `dtype`, a chunk at a time; where they are upcast, into one buffer that the next one overwrites."""
    num_rows = min(w.shape[-2], max(1, _chunk_bytes(w) // (w[..., :1, :].numel() * dtype.itemsize)))
    if w.dtype == dtype:
        yield from w.split(num_rows, dim=-2)
        return
    buffer = w.new_empty((*w.shape[:-2], num_rows, w.shape[-1]), dtype=dtype)
    for part in w.split(num_rows, dim=-2):
        yield buffer[..., : part.shape[-2], :].copy_(part)


def _chunk_bytes(w: Tensor) -> int:
    return GPU_CHUNK_BYTES if _is_gpu(w) else CHUNK_BYTES


def _is_gpu(tensor: Tensor) -> bool:
    """Whether starting an operation on a tensor takes longer than most operations."""
    return tensor.device.type != "cpu"


def _scaled(
    w: Float[Tensor, "*batch m n"],
) -> tuple[Float[Tensor, "B long short"], Float[Tensor, " B"], Bool[Tensor, " B"]]:
    """Return matrices with their shorter side last, powers of two that were divided out, and which are not finite.

    Zeros stand in for those. Only matrices outside of float32's range are rescaled; most weights are left as they are.
    """
    _refuse_unmeasurable(w)
    flat = w.detach().flatten(end_dim=-3) if w.ndim > MATRIX_AXES else w.detach()[None]
    flat = flat.mT if flat.shape[-1] > flat.shape[-2] else flat
    largest = _largest_entry(flat)
    broken = ~torch.isfinite(largest)
    _, exponent = torch.frexp(largest.masked_fill(broken, 1.0))
    scale = torch.where(exponent.abs() > SAFE_EXPONENT, torch.ldexp(torch.ones_like(largest), exponent), 1.0)
    some_broken, some_scaled = torch.stack((broken.any(), (scale != 1.0).any())).tolist()  # a GPU is waited for once
    if some_broken:
        flat = flat.masked_fill(broken[:, None, None], 0.0)
    if some_scaled:
        # In the dtype that it had: by powers of two that is exact, and others of the batch stay as they are.
        flat = (flat.double() / scale[:, None, None]).to(flat.dtype)
    return flat, scale, broken


def _largest_entry(w: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    return torch.maximum(-w.amin(dim=(-2, -1)), w.amax(dim=(-2, -1))).double()


def _refuse_unmeasurable(w: Tensor) -> None:
    required_tensor("w", w)
    if w.ndim < MATRIX_AXES or 0 in w.shape[-2:]:
        raise ValueError(f"`w` must be matrices (..., m, n) with entries, got shape {tuple(w.shape)}.")
    if not w.is_floating_point():
        raise TypeError(f"`w` must be floating point, got {w.dtype}. Dequantise it first.")


def _random_start(shape: tuple[int, ...], device: torch.device) -> Float[Tensor, "*batch n"]:
    """The same Gaussian vector for the same shape, on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64).to(device)


def _top_eigenvalues(w: Float[Tensor, "B m n"]) -> Float[Tensor, " B"]:
    """Largest eigenvalue of each WᵀW, where n is the shorter side."""
    if w.shape[-1] > SMALL:
        return torch.stack([_iterated(matrix) for matrix in w])
    num_together = max(1, _chunk_bytes(w) // (8 * w.shape[-1] ** 2))
    return torch.cat([_decomposed(part) for part in w.split(num_together)])


def _iterated(w: Float[Tensor, "m n"]) -> Float[Tensor, ""]:
    """Search in float32, verify in float64, decompose where that fails."""
    found = _search(w.float(), _random_start((1, w.shape[1]), w.device))
    if float(found.value) == 0:
        return w.new_zeros((), dtype=torch.float64)
    verify = partial(_lanczos, max_steps=VERIFY_STEPS, tolerance=VERIFIED_RESIDUAL, check_every=1)
    found = verify(_products([w], torch.float64), found.vector)
    return found.value[0].to(w.device) if bool(found.residual <= VERIFIED_RESIDUAL) else _decomposed(w[None])[0]


def _search(w: Float[Tensor, "m n"], start: Float[Tensor, "1 n"]) -> _Ritz:
    """Iterate until float32 has no more to say, with the Gram matrix where a few products did not do.

    Not on a GPU, where products of two matrices may round their operands.
    """
    search = partial(_lanczos, tolerance=SEARCH_RESIDUAL, check_every=CHECK_EVERY)
    m, n = w.shape
    if _is_gpu(w) or n > GRAM_SIDE or m < GRAM_ASPECT * n:
        return search(_products([w]), start, max_steps=SEARCH_STEPS)
    found = search(_products([w]), start, max_steps=EARLY_STEPS)
    if not bool(found.residual > SEARCH_RESIDUAL):
        return found
    gram = _gram_matrix(w)
    return search(lambda v: torch.mv(gram, v[0].float()).double()[None], found.vector, max_steps=SEARCH_STEPS)


def _decomposed(w: Float[Tensor, "B m n"]) -> Float[Tensor, " B"]:
    """Top eigenvalue of the whole Gram matrix in float64, built from chunks of rows."""
    num_batch, _, n = w.shape
    gram = w.new_zeros((num_batch, n, n), dtype=torch.float64)
    for chunk in _upcast_chunks(w, torch.float64):
        gram += chunk.mT @ chunk
    if _is_gpu(gram):  # which decomposes one matrix after another
        return top_by_squaring(gram)
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0)


def top_by_squaring(gram: Float[Tensor, "B n n"]) -> Float[Tensor, " B"]:
    r"""Largest eigenvalue of matrices that are positive semidefinite, by products alone; float64.

    For a matrix $A$ of trace 1 it lies between $1/n$ and 1. So with $A_0 = G / t_0$ and $A_j = A_{j-1}^2 / t_j$, where
    every fifth $t_j$ makes the trace 1 and the others are 1,

    $$\log \lambda = \sum_{j=0}^{k} 2^{-j} \log t_j - \delta, \qquad 0 \le \delta \le 2^{-k} \log n,$$

    whatever the gaps of the spectrum, and the rounding of a squaring counts as little as its $2^{-j}$.

    >>> top_by_squaring(torch.diag(torch.tensor([3.0, 5.0, 1.0])).double()[None])
    tensor([5.0000], dtype=torch.float64)
    """
    power, logarithm = gram, gram.new_zeros(len(gram))
    for j in range(0, NUM_SQUARINGS + 1, NORMALISE_EVERY):
        trace = power.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        logarithm = logarithm + trace.log() * 0.5**j
        power = power / trace.clamp(min=TINY)[:, None, None]
        for _ in range(NORMALISE_EVERY if j < NUM_SQUARINGS else 0):
            power = torch.bmm(power, power)
    return logarithm.exp()  # of a zero matrix the logarithm is -inf
