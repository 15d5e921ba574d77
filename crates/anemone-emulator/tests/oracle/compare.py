"""Compares the emulator with an independent numpy executor on packages written by coremltools and by anemone.

usage: compare.py --run BINARY --oracle DIR [--work DIR] [PACKAGE ...] [--bounded PACKAGE ...]

BINARY is the crate's example `run_package`; DIR holds mil_oracle.py; needs coremltools 9 and safetensors (no torch).
Built with coremltools, saved and compared: a small program of many operations, two functions and a state; one for each earlier
system, its weights plain and as the optimizer compresses them. Then the given packages, every function, on random inputs. Every operation's result is compared, given the emulator's own operands, in both
profiles. Bound: 2 units in the last place of fp16 at the row's largest magnitude. How far the outputs are from an oracle that
goes on with its own values, where roundings add up over the whole function, is shown beside it, and for packages after --bounded
it has the same bound: those of bundles with one layer to a package.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")
import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.milproto.load import load as mil_load
from coremltools.converters.mil.mil import types
from safetensors.numpy import load_file, save_file

ULPS = 2


def small_program(path, seed, states):
    rng = np.random.default_rng(seed)
    f16 = lambda *s: (rng.standard_normal(s) * 0.5).astype(np.float16)
    w1, w2, w3, table, gamma = f16(24, 16, 1, 1), f16(16, 8, 1, 3), f16(8, 1, 3, 1), f16(40, 16), f16(16)

    def body(x, ids, cache):
        y = mb.conv(x=x, weight=w1, bias=f16(24), pad_type="valid")
        a, b, c = mb.split(x=y, split_sizes=[8, 8, 8], axis=1)
        a = mb.gelu(x=a, mode="EXACT")
        b = mb.silu(x=mb.gelu(x=b, mode="TANH_APPROXIMATION"))
        c = mb.mul(x=mb.tanh(x=c), y=mb.sigmoid(x=mb.cos(x=c)))
        s = mb.concat(values=[a, b], axis=1, interleave=True)
        s = mb.layer_norm(x=s, axes=[1], gamma=gamma, beta=f16(16), epsilon=np.float16(1e-3))
        grouped = mb.conv(x=s, weight=w2, groups=2, pad_type="custom", pad=[0, 0, 2, 0], strides=[1, 1], dilations=[1, 1])
        deep = mb.conv(x=c, weight=w3, groups=8, pad_type="custom", pad=[1, 1, 0, 0])
        q = mb.transpose(x=mb.reshape(x=grouped, shape=[1, 4, 4, 6]), perm=[0, 2, 3, 1])
        p = mb.softmax(x=mb.matmul(x=q, y=q, transpose_y=True), axis=-1)
        o = mb.matmul(x=p, y=q)
        o = mb.reshape(x=mb.transpose(x=o, perm=[0, 3, 1, 2]), shape=[1, 16, 1, 6])
        k = mb.transpose(x=o, perm=[0, 3, 2, 1])
        scores = mb.einsum(values=[k, s], equation="bkhc,bchq->bkhq")
        scores = mb.softmax(x=mb.mul(x=scores, y=np.float16(0.25)), axis=1)
        att = mb.einsum(values=[o, scores], equation="bchk,bkhq->bchq")
        if cache is not None:
            past = mb.read_state(input=cache)
            new = mb.slice_update(x=past, update=att, begin=[0, 0, 0, 2], end=[1, 16, 1, 8])
            written = mb.coreml_update_state(state=cache, value=new)
            att = mb.add(x=att, y=mb.slice_by_index(x=written, begin=[0, 0, 0, 1], end=[1, 16, 1, 7]))
        rows = mb.gather(x=table, indices=ids, axis=0)
        rows = mb.transpose(x=mb.expand_dims(x=rows, axes=[0, 1]), perm=[0, 3, 1, 2])
        mean = mb.reduce_mean(x=mb.square(x=att), axes=[1], keep_dims=True)
        out = mb.mul(x=att, y=mb.rsqrt(x=mean, epsilon=np.float16(1e-4)))
        out = mb.add(x=out, y=mb.real_div(x=rows, y=mb.exp(x=mb.clip(x=rows, alpha=np.float16(-1), beta=np.float16(1)))))
        big = mb.select(cond=mb.greater(x=out, y=np.float16(0.1)), a=out, b=mb.mul(x=out, y=np.float16(-0.5)))
        picked = mb.slice_by_index(x=big, begin=[0, 1, 0, 0], end=[1, 16, 1, 6], stride=[1, 3, 1, 2])
        best = mb.reduce_argmax(x=big, axis=1, keep_dims=False)
        down = mb.maximum(x=mb.reduce_sum(x=deep, axes=[1, 3]), y=mb.reduce_max(x=deep, axes=[1, 3]))
        tall = mb.tile(x=down, reps=[1, 3])
        return [mb.identity(x=big, name="y"), mb.identity(x=picked, name="picked"),
                mb.cast(x=best, dtype="int32", name="best"), mb.identity(x=tall, name="tall")]

    specs = [mb.TensorSpec((1, 16, 1, 6), dtype=types.fp16), mb.TensorSpec((6,), dtype=types.int32)]
    if states:
        specs.append(mb.StateTensorSpec((1, 16, 1, 8), dtype=types.fp16))

        @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
        def prog(x, ids, cache):
            return tuple(body(x, ids, cache))
    else:
        @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
        def prog(x, ids):
            return tuple(body(x, ids, None))

    model = ct.convert(prog, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
                       compute_precision=ct.precision.FLOAT32, skip_model_load=True,
                       pass_pipeline=ct.PassPipeline.DEFAULT)
    model.save(str(path))


def both_functions(work):
    """A multifunction package of two programs, and the one with a state by itself."""
    plain, other, stateful = work / "plain.mlpackage", work / "other.mlpackage", work / "stateful.mlpackage"
    small_program(plain, 1, False)
    small_program(other, 2, False)
    small_program(stateful, 3, True)
    desc = ct.utils.MultiFunctionDescriptor()
    desc.add_function(str(plain), "main", "first")
    desc.add_function(str(other), "main", "second")
    desc.default_function_name = "first"
    multi = work / "multi.mlpackage"
    ct.utils.save_multifunction(desc, str(multi))
    return [multi, stateful]


def earlier_systems(work):
    """Programs of specification versions 6 to 9 whose weights are plain, in a table, scaled integers or sparse."""
    made = []
    for system in ("iOS15", "iOS16", "iOS17", "iOS18"):
        target = getattr(ct.target, system)
        # fp16 inputs came with iOS16.
        narrow = system != "iOS15"
        rng = np.random.default_rng(5)
        f16 = lambda *s: (rng.standard_normal(s) * 0.2).astype(np.float16)
        w1, w2, w3, bias = f16(64, 64, 1, 1), f16(64, 64, 1, 1), f16(48, 64), f16(64)

        @mb.program(input_specs=[mb.TensorSpec((1, 64, 1, 4), dtype=types.fp16 if narrow else types.fp32)], opset_version=target)
        def prog(x):
            y = x if narrow else mb.cast(x=x, dtype="fp16")
            y = mb.relu(x=mb.conv(x=y, weight=w1, pad_type="valid"))
            y = mb.conv(x=y, weight=w2, pad_type="valid", bias=bias)
            y = mb.transpose(x=mb.squeeze(x=y, axes=[2]), perm=[0, 2, 1])
            y = mb.softmax(x=mb.linear(x=y, weight=w3), axis=-1)
            return mb.identity(x=y if narrow else mb.cast(x=y, dtype="fp32"), name="y")

        model = ct.convert(prog, convert_to="mlprogram", minimum_deployment_target=target,
                           compute_precision=ct.precision.FLOAT32, skip_model_load=True)
        made.append(work / f"{system}.mlpackage")
        model.save(str(made[-1]))
        if not narrow:
            continue
        table = [cto.OpPalettizerConfig(mode="uniform", nbits=bits, weight_threshold=0) for bits in (2, 4, 8)]
        forms = [(f"table{c.nbits}", cto.palettize_weights, c) for c in table]
        forms.append(("integers", cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(mode="linear", weight_threshold=0)))
        forms.append(("sparse", cto.prune_weights, cto.OpThresholdPrunerConfig(
            threshold=0.1, minimum_sparsity_percentile=0.1, weight_threshold=0)))
        for form, compress, config in forms:
            made.append(work / f"{system}-{form}.mlpackage")
            compress(model, cto.OptimizationConfig(global_config=config)).save(str(made[-1]))
    return made


def layer_norm(x, axes, gamma=None, beta=None, epsilon=1e-5):
    """The oracle's own broadcasts its factors along the last axes only."""
    axes = tuple(int(a) % x.ndim for a in axes)
    shape = [d if i in axes else 1 for i, d in enumerate(x.shape)]
    y = (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + epsilon)
    return y * (1 if gamma is None else gamma.reshape(shape)) + (0 if beta is None else beta.reshape(shape))


def concat(values, axis, interleave=False):
    """The oracle's own does not interleave."""
    if not interleave:
        return np.concatenate(values, axis=int(axis))
    axis = int(axis) % values[0].ndim
    shape = list(values[0].shape)
    shape[axis] *= len(values)
    return np.stack(values, axis=axis + 1).reshape(shape)


def batch_norm(x, mean, variance, gamma=None, beta=None, epsilon=1e-5):
    channels = lambda v: np.asarray(v, np.float32).reshape((1, -1) + (1,) * (x.ndim - 2))
    y = (x - channels(mean)) / np.sqrt(channels(variance) + epsilon)
    return y * (1 if gamma is None else channels(gamma)) + (0 if beta is None else channels(beta))


def random_inputs(f, rng):
    inputs, state = {}, {}
    for name, var in f.inputs.items():
        if types.is_state(var.sym_type):
            inner = var.sym_type.wrapped_type()
            shape = [int(d) for d in inner.get_shape()]
            state[name] = (rng.standard_normal(shape) * 0.5).astype(np.float16)
            continue
        shape = [int(d) for d in var.shape]
        dtype = types.nptype_from_builtin(var.dtype)
        if np.issubdtype(dtype, np.integer):
            inputs[name] = rng.integers(0, 8, shape).astype(dtype)
        elif "mask" in name:
            inputs[name] = np.where(rng.random(shape) < 0.3, -1e4, 0.0).astype(dtype)
        else:
            inputs[name] = (rng.standard_normal(shape) * 0.5).astype(dtype)
    return inputs, state


def distance(want, got):
    """Largest difference in fp16 units in the last place at the largest magnitude of a row (the last axis of length > 1)."""
    assert want.shape == got.shape, (want.shape, got.shape)
    want, got = np.atleast_1d(np.squeeze(want)), np.atleast_1d(np.squeeze(got))
    if not want.size:
        return 0.0
    top = np.maximum(np.abs(want).max(axis=-1, keepdims=True), 2.0 ** -14)
    ulp = 2.0 ** (np.floor(np.log2(top)) - 10)
    return float((np.abs(want - got) / ulp).max())


def fail(problem):
    print(problem)
    sys.exit(1)


def compare(oracle, run, package, work, seed, bounded=False):
    model = ct.models.MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()
    program = mil_load(spec, spec.specificationVersion, model.weights_dir)
    # The oracle keeps expanded weights by the address of their variable, which the next program uses again.
    oracle._CE.clear()
    worst = 0.0
    for name, function in program.functions.items():
        for profile in ("f32", "fp16"):
            inputs, state = random_inputs(function, np.random.default_rng(seed))
            tensors = {k: v.astype(np.float32) for k, v in inputs.items()}
            tensors.update({"state:" + k: v.astype(np.float32) for k, v in state.items()})
            given, made = work / "in.safetensors", work / "out.safetensors"
            save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, given)
            subprocess.run([run, package, name, given, made, "--profile", profile, "--taps"], check=True)
            found = load_file(made)
            if profile == "f32":
                inputs = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in inputs.items()}
                state = {k: v.astype(np.float32) for k, v in state.items()}
            alone = oracle.run(program, name, inputs, {k: v.copy() for k, v in state.items()}, round_ops=profile == "fp16")
            if profile == "fp16":
                drift = max(distance(np.asarray(v, np.float32), found[k]) for k, v in alone.items())
            seen = 0

            def check(op, key, want):
                nonlocal worst, seen
                got = found["tap:" + key]
                off = distance(np.asarray(want, np.float32), got)
                worst, seen = max(worst, off), seen + 1
                if not off <= ULPS:
                    fail(f"{package} {name} {profile}: {op.op_type} `{key}` is {off:.2f} ulp off, the bound is {ULPS}")
                # What follows is computed from the emulator's own value, so that no error is counted twice.
                if want.flags.writeable and want.ndim:
                    np.copyto(want, got.astype(want.dtype))

            expected = oracle.run(program, name, inputs, state, round_ops=profile == "fp16", tap=check)
            expected.update({"state:" + k: v for k, v in state.items()})
            assert seen > 0 and set(expected) == {k for k in found if not k.startswith("tap:")}, sorted(found)
            for key, want in expected.items():
                off = distance(np.asarray(want, np.float32), found[key])
                if not off <= ULPS:
                    fail(f"{package} {name} {profile}: `{key}` is {off:.2f} ulp off, the bound is {ULPS}")
        if bounded and not drift <= ULPS:
            fail(f"{package} {name} fp16: outputs of the whole are {drift:.2f} ulp off, the bound is {ULPS}")
        print(f"{package.name} {name}: within {worst:.3f} ulp, outputs of the whole within {drift:.3f}")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--oracle", required=True)
    parser.add_argument("--work", default="target/oracle")
    parser.add_argument("packages", nargs="*", type=Path)
    parser.add_argument("--bounded", nargs="*", type=Path, default=[])
    args = parser.parse_args()
    sys.path.insert(0, args.oracle)
    import mil_oracle

    mil_oracle.OPS.update(layer_norm=layer_norm, concat=concat, batch_norm=batch_norm)

    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    for seed, package in enumerate(both_functions(work) + earlier_systems(work) + args.packages):
        compare(mil_oracle, args.run, package, work, seed)
    for seed, package in enumerate(args.bounded):
        compare(mil_oracle, args.run, package, work, seed, bounded=True)
    print("the emulator agrees with the oracle")


if __name__ == "__main__":
    main()
