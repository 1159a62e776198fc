"""Results as lm-evaluation-harness writes them with `--output_path` and `--log_samples`.

Every method has a folder, as if it had been given as the output path: `METHOD/MODEL/results_DATE.json` and
`METHOD/MODEL/samples_TASK_DATE.jsonl`. Fields are those of lm-eval 0.4.13; "winnow" is one more, with all facts of
the run.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from winnow.runs.export.file_names import file_names, short
from winnow.runs.export.means import mean_scores
from winnow.runs.folder import About, Run, RunError
from winnow.runs.measures import measures
from winnow.runs.rows import Row, rows_by
from winnow.tasks.example import LIKELIHOODS

_FILTER = "none"


def harness_files(run: Run) -> dict[PurePath, str]:
    """The texts of all files, by their paths. Raises RunError where the run does not say when it was."""
    started = _started(run)
    about = replace(run.about, environment=run.environment)
    date = started.replace(tzinfo=None).isoformat().replace(":", "-")
    found = {}
    methods = rows_by(run.rows, lambda row: row.method)
    folders = file_names(methods, _safe)
    for method, rows in methods.items():
        folder = PurePath(folders[method]) / short(_safe(about.model.name))
        tasks = rows_by(rows, lambda row: row.task)
        samples = {task: [_sample(about, *each) for each in enumerate(rows)] for task, rows in tasks.items()}
        results = _results(about, method, tasks, started)
        results["task_hashes"] = {task: _task_hash(each) for task, each in samples.items()}
        found[folder / f"results_{date}.json"] = json.dumps(results, indent=2, ensure_ascii=False)
        names = file_names(samples, _safe)
        for task, each in samples.items():
            lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in each]
            found[folder / f"samples_{names[task]}_{date}.jsonl"] = "".join(lines)
    return found


def _results(about: About, method: str, tasks: dict[str, list[Row]], started: datetime) -> dict[str, Any]:
    known = measures()
    names = {task: list(mean_scores(rows)) for task, rows in tasks.items()}
    return {
        "results": {task: _metrics(task, rows) for task, rows in tasks.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: _task_config(about, task, names[task]) for task in tasks},
        "versions": dict.fromkeys(tasks, about.winnow_run),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {
            task: {name: known[name].higher_is_better if name in known else None for name in names[task]}
            for task in tasks
        },
        "n-samples": {task: {"original": len(rows), "effective": len(rows)} for task, rows in tasks.items()},
        "config": _config(about, method),
        "git_hash": None,
        "date": started.timestamp(),
        "pretty_env_info": "\n".join(f"{name}: {value}" for name, value in about.environment.items()),
        "transformers_version": about.environment.get("transformers"),
        "lm_eval_version": None,
        "upper_git_hash": None,
        "model_source": "winnow",
        "model_name": about.model.name,
        "model_name_sanitized": _safe(about.model.name),
        "system_instruction": None,
        "system_instruction_sha": None,
        "fewshot_as_multiturn": None,
        "chat_template": None,
        "chat_template_sha": None,
        "total_evaluation_time_seconds": str(_seconds(tasks)),
        "winnow": asdict(about),
    }


def _metrics(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {"alias": task, "name": task, "sample_len": len(rows)}
    for name, mean in mean_scores(rows).items():
        values = [row.scores[name] for row in rows if name in row.scores]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else "N/A"
        found |= {f"{name},{_FILTER}": mean, f"{name}_stderr,{_FILTER}": error}
    return found


def _task_config(about: About, task: str, names: Sequence[str]) -> dict[str, Any]:
    return {
        "task": task,
        "dataset_path": about.benchmark,
        "dataset_name": task,
        "output_type": "loglikelihood" if about.measures.get(task) in LIKELIHOODS else "generate_until",
        "metric_list": [{"metric": name, "aggregation": "mean"} for name in names],
        "repeats": 1,
        "num_fewshot": 0,
        "metadata": {"version": about.winnow_run, "protocol": about.protocol},
    }


def _config(about: About, method: str) -> dict[str, Any]:
    seed = about.request.get("seed")
    return {
        "model": "winnow",
        "model_args": {"pretrained": about.model.name, "method": method},
        "model_dtype": about.model.dtype,
        "model_sha": about.model.fingerprint,
        "batch_size": None,
        "batch_sizes": [],
        "device": about.environment.get("device"),
        "use_cache": None,
        "limit": about.request.get("examples"),
        "bootstrap_iters": 0,
        "gen_kwargs": None,
        "random_seed": seed,
        "numpy_seed": seed,
        "torch_seed": seed,
        "fewshot_seed": seed,
    }


def _sample(about: About, index: int, row: Row) -> dict[str, Any]:
    """A run keeps no prompts: `arguments` have none, and hashes are of what stands for them."""
    target = json.dumps(row.answers, ensure_ascii=False)
    return {
        "doc_id": index,
        "doc": {"example": row.example, "answers": row.answers, **row.facts},
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": "", "arg_1": {}}},
        "resps": [[row.prediction]],
        "filtered_resps": [row.prediction],
        "filter": _FILTER,
        "metrics": list(row.scores),
        "doc_hash": row.content,
        "prompt_hash": _hash(json.dumps([row.content, about.protocol], sort_keys=True)),
        "target_hash": _hash(target),
        **row.scores,
    }


def _task_hash(samples: Sequence[dict[str, Any]]) -> str:
    return _hash("".join(each["doc_hash"] + each["prompt_hash"] + each["target_hash"] for each in samples))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _seconds(tasks: dict[str, list[Row]]) -> float:
    return sum(row.prefill_seconds + row.decode_seconds for rows in tasks.values() for row in rows)


def _started(run: Run) -> datetime:
    try:
        moment = datetime.fromisoformat(run.about.started)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise RunError(f"{run.path} does not say when it was started, but {run.about.started!r}.") from None


def _safe(name: str) -> str:
    """A folder's name; characters are replaced as lm-eval replaces those of models."""
    return re.sub(r"[\"<>:/|\\?*\[\]\s]+|^\.{0,2}$", "__", name)
