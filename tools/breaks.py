"""Deliberate breaks: does the suite notice what must not happen?

    python tools/breaks.py            # each break alone, and the tests that are to notice it
    python tools/breaks.py rows       # those whose name begins so

A break is a line of the package made wrong for a moment. Whoever changes such a line changes it
here too: a break whose line is gone is told as well.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = ("torch", "pandas", "scipy.stats", "sklearn", "cryptography")
"""Loaded once; what is broken is loaded anew for every break."""


class Break(NamedTuple):
    """In `file` the text `right` becomes `wrong`; one of `tests` is to fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FEW, SUMS = "tests/attacks/test_few_rows.py", "tests/attacks/test_opened_sums.py"
ROWS, POLICY = "federation/rows.py", "federation/policy.py"
STAGES, RUNS = "tests/flow/test_stages.py", "tests/flow/test_runs.py"
PRODUCTS = "tests/secure/test_inner_product.py"
AUTO_FOLDS = "tests/methods/auto/test_folds.py"
PAGE, SERVING = "tests/report/test_page.py", "tests/serve/test_serving.py"
CONSOLE = "tests/console/test_console.py"
MACHINES, DESK = "tests/serve/test_machines.py", "tests/serve/test_desk.py"
SIDE_BY_SIDE = "test_models_side_by_side_one_on_trial_and_back_again"
BREAKS = (
    Break("rows: size", ROWS, "if len(found) < self.least:", "if False:", (FEW,)),
    Break(
        "rows: leverage",
        ROWS,
        "if few and np.partition(leverage, -few)[-few:].sum() > 1 - 0.5 / least:",
        "if False:",
        (FEW,),
    ),
    Break(
        "rows: one row only",
        ROWS,
        "np.partition(leverage, -few)[-few:].sum() > 1 - 0.5 / least",
        "leverage.max() > 1 - 0.5 / least",
        (FEW,),
    ),
    Break(
        "rows: named twice",
        ROWS,
        "weights, depth = counts.astype(np.float64), 1",
        "weights, depth = np.ones(len(found)), 1",
        (FEW,),
    ),
    Break("rows: lasting", ROWS, "lasts = id(table) in self._given", "lasts = False", (FEW,)),
    Break("rows: rare", ROWS, "if counts[code] >= least]", "if counts[code] >= 1]", (FEW,)),
    Break(
        "banner: what single rows told",
        "report/banner.py",
        'if kind in KINDS and KINDS[kind].severity in ("none", "low"):',
        'if kind in KINDS and KINDS[kind].exposure != "clear":',
        ("tests/report/test_banner.py",),
    ),
    Break(
        "banner: a bound that one method lacks",
        "report/banner.py",
        "if all(given) else []",
        "if any(given) else []",
        ("tests/report/test_banner.py",),
    ),
    Break(
        "labels: one task for all methods",
        "flow/config/loading.py",
        "if config.task is not None:",
        "if False:",
        ("tests/flow/config/test_loading.py",),
    ),
    Break(
        "labels: counts in silence",
        "flow/doubts.py",
        "notes = list(_label_doubts(table, party)) if task is None else []",
        "notes: list[str] = []",
        ("tests/flow/config/test_doubts.py",),
    ),
    Break(
        "labels: a partner's copy",
        "flow/doubts.py",
        "if same >= A_COPY:",
        "if False:",
        ("tests/flow/config/test_doubts.py",),
    ),
    Break(
        "rows: complement",
        ROWS,
        "while kept and 0 < len(codes) - counts[kept].sum() < least:",
        "while False:",
        (FEW,),
    ),
    Break(
        "rows: scored",
        "methods/annotators/worker.py",
        "return [rows, Scored(rows, logs)]",
        "return [rows]",
        ("tests/attacks/test_foreign_scores.py",),
    ),
    Break(
        "rows: centred",
        "methods/annotators/worker.py",
        "logs -= logs.mean(1, keepdims=True)",
        "logs = logs",
        ("tests/attacks/test_foreign_scores.py",),
    ),
    Break(
        "rows: many models scored",
        ROWS,
        "MAX_SCORED = 20",
        "MAX_SCORED = 500",
        ("tests/attacks/test_foreign_scores.py",),
    ),
    Break("rows: folds", "methods/auto/folds.py", "return [out, ~out]", "return [None]", (FEW,)),
    Break(
        "rows: labels and columns apart",
        "report/overview.py",
        'return "labels"',
        'return "columns"',
        (FEW,),
    ),
    Break("opens: label sums", POLICY, "if not self.label_sums:", "if False:", (SUMS,)),
    Break(
        "opens: a sum's own kind",
        "secure/sums.py",
        '        self.site.policy.admit_kind(me, f"the sum of {name!r}", opens)\n',
        "",
        (SUMS,),
    ),
    Break(
        "opens: few differ",
        "secure/columns.py",
        "if varies_in_few(rows[-1], worker.site.rows.least):",
        "if False:",
        (SUMS,),
    ),
    Break(
        "opens: few ranks differ",
        "secure/correlation.py",
        "if len(seen) >= least and not varies_in_few(seen, least):",
        "if True:",
        (SUMS,),
    ),
    Break(
        "opens: audit by what opened",
        "report/words.py",
        "entry.readable, entry.sealed_for",
        "entry.kind, entry.sealed_for",
        ("tests/audit/test_statement.py", SUMS),
    ),
    Break(
        "opens: audit by shape",
        "audit/statement.py",
        'return replace(entry, opens="row") if by_row and entry.readable in AGGREGATES else entry',
        "return entry",
        ("tests/audit/test_statement.py", SUMS),
    ),
    Break(
        "report: escaped",
        "report/page.py",
        "autoescape=select_autoescape(default=True)",
        "autoescape=False",
        (f"{PAGE}::test_values_of_the_parties_cannot_break_the_page",),
    ),
    Break(
        "report: policy of a page",
        "report/page.py",
        "default-src 'none'",
        "default-src *",
        (f"{PAGE}::test_an_audit",),
    ),
    Break(
        "report: what got in would run",
        "report/page.py",
        "*(asking if scripts else []),",
        "*asking,",
        (f"{PAGE}::test_an_audit",),
    ),
    Break(
        "report: refused is not seen",
        "report/words.py",
        "if self.refused or self.passed_on:",
        "if self.passed_on:",
        ("tests/report/test_words.py",),
    ),
    Break(
        "report: sealed tells the relay nothing",
        "report/words.py",
        "return bool(self.sealed_for) and self.sealed_for != self.receiver",
        "return bool(self.sealed_for)",
        ("tests/report/test_words.py",),
    ),
    Break(
        "report: less is better",
        "report/record.py",
        "sign = 1 if better_is_higher(self.metric) else -1",
        "sign = 1",
        ("tests/report/test_record.py",),
    ),
    Break(
        "report: ids of pictures",
        "report/plots.py",
        r'rf"\g<1>{name}-"',
        r'r"\g<1>"',
        ("tests/report/test_plots.py",),
    ),
    Break(
        "report: few in common",
        "report/advice.py",
        "if shared >= FEW_SHARED * owner.rows:",
        "if True:",
        ("tests/report/test_advice.py",),
    ),
    Break(
        "report: classes of few rows",
        "report/overview.py",
        "enough = frequent(codes, len(distinct), self.site.rows.least)",
        "enough = list(range(len(distinct)))",
        (FEW,),
    ),
    Break(
        "serve: pages elsewhere",
        "serve/serving.py",
        'or self.headers.get("Origin") is not None',
        "",
        (f"{SERVING}::test_for_this_machine_only",),
    ),
    Break(
        "serve: names of this machine",
        "serve/loopback.py",
        'return host in (LOOPBACK, "localhost")',
        "return True",
        (f"{SERVING}::test_for_this_machine_only",),
    ),
    Break(
        "serve: large requests",
        "serve/loopback.py",
        "elif len(length) > len(str(most)) or int(length) > most:",
        "elif False:",
        (f"{SERVING}::test_large_requests_are_not_read",),
    ),
    Break(
        "serve: a small intersection",
        "serve/predicting.py",
        "except TooFewCommon as error:",
        "except ZeroDivisionError as error:",
        ("tests/serve/test_running.py",),
    ),
    Break(
        "serve: rows stay in order",
        "serve/predicting.py",
        'whole.iloc[np.argsort(places, kind="stable")]',
        "whole",
        ("tests/serve/test_running.py",),
    ),
    Break(
        "serve: answers go nowhere",
        "serve/predicting.py",
        'but(PredictionWorker, "answers")',
        "PredictionWorker",
        ("tests/serve/test_running.py::test_over_machines_answers_stay_where_the_rows_are",),
    ),
    Break(
        "serving: a deadline is not kept",
        "serve/engine.py",
        "return time.monotonic() + SETUP_SECONDS if until is None else float(until)",
        "return time.monotonic() + SETUP_SECONDS",
        (f"{MACHINES}::test_over_a_slow_link_the_partner_is_waited_for_until_the_deadline",),
    ),
    Break(
        "serving: whoever asks",
        "serve/serving.py",
        "if not askers:",
        "if True:",
        (f"{MACHINES}::test_askers_have_tokens_and_people_a_quota",),
    ),
    Break(
        "serving: a quota counts nothing",
        "serve/sources.py",
        "self._asked.update((asker, each) for each in people if each not in refused)",
        "self._asked.update(())",
        (DESK,),
    ),
    Break(
        "certificates: a revoked party stays known",
        "deploy/provision.py",
        "known if name != kit.name]",
        "known]",
        ("tests/deploy/test_provision.py::test_a_certificate_is_renewed_and_revoked",),
    ),
    Break(
        "serving: a revoked part answers",
        "serve/partner.py",
        "if not site.vault[PART].is_dir():",
        "if False:",
        (DESK,),
    ),
    Break(
        "serving: rows of another table",
        "data/encode.py",
        "if self._whole is None or self._whole[0] is not table.whole:",
        "if self._whole is None:",
        ("tests/data/test_encode.py",),
    ),
    Break(
        "serving: any party of the authority",
        "serve/channel.py",
        "if party not in self._admitted:",
        "if False:",
        (f"{MACHINES}::test_foreign_certificates_are_refused_by_name",),
    ),
    Break(
        "serving: a session trains",
        "serve/partner.py",
        "worker: some if worker in whole else some & CALLS",
        "worker: some",
        (f"{MACHINES}::test_a_session_can_predict_and_nothing_else",),
    ),
    Break(
        "serving: a partner that goes while it joins",
        "serve/answering.py",
        "met with other keys.\n        self.engine.renew()",
        "met with other keys.",
        (f"{MACHINES}::test_dead_and_back_again", "-m", "slow"),
    ),
    Break(
        "serving: two write one ledger",
        "_files.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        (f"{MACHINES}::{SIDE_BY_SIDE}",),
    ),
    Break(
        "serving: a quota for each model",
        "serve/versions.py",
        "                made.share_quota(self.default)\n",
        "",
        (f"{MACHINES}::{SIDE_BY_SIDE}",),
    ),
    Break(
        "console: a page that is older than it says",
        "console/server.py",
        "state=state,",
        "state=self.party.state(),",
        (CONSOLE,),
    ),
    Break(
        "opens: published ranks",
        "secure/published.py",
        'opens="row", ',
        "",
        ("tests/secure/test_correlation.py", SUMS),
    ),
    Break(
        "completion: scope",
        "methods/completion/targets.py",
        "nowhere = np.full(length, np.iinfo(np.int64).max)",
        "nowhere = np.full(length, -1)",
        ("tests/methods/completion/test_linear.py", "-k", "scope_of_products"),
    ),
    Break(
        "completion: disclose",
        "methods/completion/trees.py",
        "self._disclose is not None and len(self._disclosed) > self._disclose",
        "False",
        ("tests/methods/completion/test_trees.py", "-k", "than_agreed"),
    ),
    Break(
        "completion: skill",
        "methods/completion/merging.py",
        "least_skill is None or made.skill[name] >= least_skill",
        "True",
        ("tests/methods/completion/test_fedpsg_pum.py", "-k", "little_skill"),
    ),
    Break(
        "inc: one standard error",
        "methods/annotators/inc.py",
        "if best.losses is not None and crowd.clearly_less(best.losses, than=plain):",
        "if True:",
        ("tests/methods/annotators/test_length.py", "-k", "say_nothing"),
    ),
    Break(
        "completion: leaning",
        "methods/completion/stacking.py",
        "and lost.mean() <= chance:",
        "and True:",
        ("tests/methods/completion/test_stacking.py", "-k", "leaning_costs"),
    ),
    Break(
        "completion: set aside",
        "methods/completion/self_training.py",
        "if not self.outcome.changed or not self.active:",
        "if True:",
        ("tests/methods/completion/test_fedpsg_pum.py", "-k", "sets_aside"),
    ),
    Break(
        "completion: held-out rows",
        "methods/completion/self_training.py",
        "labels[self._held] = -1 if",
        "labels[:0] = -1 if",
        ("tests/methods/completion/test_fedpsg_pum.py", "-k", "as_many_folds"),
    ),
    Break(
        "boosting: sibling",
        "methods/boosting/grow.py",
        "[up - one for up, one in zip(parent, own, strict=True)]",
        "list(parent)",
        ("tests/methods/completion/test_trees.py", "-k", "grown_in_the_clear and plain"),
    ),
    Break(
        "boosting: own target",
        "methods/boosting/boost.py",
        "if own == name]",
        "if False]",
        ("tests/methods/completion/test_trees.py", "-k", "own_columns"),
    ),
    Break(
        "boosting: leaves of few rows",
        "methods/boosting/secureboost.py",
        "min_rows=max(least, self.site.rows.least)",
        "min_rows=0",
        ("tests/methods/boosting/test_secureboost.py", "-k", "as_many_rows"),
    ),
    Break(
        "boosting: whom a partner knows",
        "methods/boosting/secureboost.py",
        "name: number[self.site.alignments[scope].aligned] for name, scope in met.items()",
        "name: number[self.alignment.aligned] for name in met",
        ("tests/methods/boosting/test_secureboost.py", "-k", "with_all_rows_it_shares"),
    ),
    Break(
        "boosting: few rows more",
        "methods/boosting/secureboost.py",
        "name for name in known if _aligned(pairs[name]) - _aligned(self.fed) >= least[name]",
        "name for name in known",
        ("tests/methods/boosting/test_secureboost.py", "-k", "shares_few_rows_more"),
    ),
    Break(
        "auto: rows of one partner",
        "methods/auto/worker.py",
        "kinds[rows] = 0",
        "pass",
        ("tests/methods/auto/test_auto.py", "-k", "one_of_several_partners"),
    ),
    Break(
        "auto: a partner keeps what is held out",
        "methods/auto/folds.py",
        "here |= np.isin(own.unaligned, self.site.alignments[pair].aligned[numbers == number])",
        "pass",
        ("tests/methods/boosting/test_secureboost.py", "-k", "rows_of_every_two"),
    ),
    Break(
        "boosting: strangers",
        "methods/boosting/secureboost.py",
        "left = np.full(len(self._rows_used), self._part().tables[sender].missing_left(own))",
        "left = np.zeros(len(self._rows_used), bool)",
        ("tests/methods/boosting/test_secureboost.py", "-k", "missing_cells_there"),
    ),
    Break(
        "boosting: a carry on the wire",
        "secure/histogram_product.py",
        "low = values & _MASK",
        "low = values",
        ("tests/secure/test_histogram_product.py", "-k", "uniform"),
    ),
    Break(
        "boosting: bound of both halves",
        "secure/columns.py",
        "if self.abs_sum is not None and int(np.abs(column).sum()) > self.abs_sum:",
        "if False:",
        ("tests/secure/test_inner_product.py", "-k", "sum_of_magnitudes"),
    ),
    Break(
        "boosting: sides forgotten on the way",
        "methods/boosting/secureboost.py",
        'self._known.update(zip(saved["known"], sides, strict=True))',
        'self._known.update(zip(saved["known"], ~sides, strict=True))',
        ("tests/methods/boosting/test_secureboost.py", "-k", "to_the_bit"),
    ),
    Break(
        "boosting: gains of other columns",
        "methods/boosting/secureboost.py",
        "len(self.joint.layouts) + own.columns])",
        "own.columns])",
        ("tests/methods/boosting/test_secureboost.py", "-k", "share_of_the_gains"),
    ),
    Break(
        "boosting: stopped by rows of one party",
        "methods/boosting/boost.py",
        "and self.best_at < HARDLY",
        "and False",
        ("tests/methods/boosting/test_secureboost.py", "-k", "together_is_not"),
    ),
    Break(
        "annotators: a row's own votes say how far it is believed",
        "methods/annotators/aggregation.py",
        "other = slice(1 - half,",
        "other = slice(half,",
        ("tests/methods/annotators/test_crowd.py", "-k", "believed"),
    ),
    Break(
        "boosting: made-up cells",
        "methods/boosting/secureboost.py",
        "else trust[rows] == 1.0",
        "else trust[rows] >= 0.0",
        ("tests/methods/boosting/test_secureboost.py", "-k", "completed_cells"),
    ),
    Break(
        "audit: sides of another column",
        "audit/trees.py",
        "if table.columns[own] == at]",
        "if True]",
        ("tests/audit/test_trees.py", "-k", "sides_tell"),
    ),
    Break(
        "boosting: counts",
        "methods/boosting/boost.py",
        "gradient, curvature = means - target.labels[rows]",
        "gradient, curvature = scores - target.labels[rows]",
        ("tests/methods/boosting/test_secureboost.py", "-k", "several_classes"),
    ),
    Break(
        "boosting: cuts that are not there",
        "methods/boosting/secureboost.py",
        "if any(not 0 <= cut < len(self._table) for cut in cuts):",
        "if False:",
        ("tests/methods/boosting/test_secureboost.py", "-k", "not_there"),
    ),
    Break(
        "generate: gaps",
        "generate/ctgan.py",
        "fake = torch.where(gaps, neutral, fake)",
        "pass",
        ("tests/generate/test_adversarial.py", "-k", "gaps_of_real_ones and not tab"),
    ),
    Break(
        "generate: given cells",
        "generate/base.py",
        "rows[name] = np.where(np.isnan(cells), rows[name], cells)",
        "pass",
        ("tests/generate/test_base.py", "-k", "observed_range_are_kept"),
    ),
    Break(
        "tables: an id twice",
        "data/table.py",
        "    _reject_duplicates(checked)",
        "    pass",
        ("tests/data/test_table.py", "-k", "bad_ids"),
    ),
    Break(
        "tables: the label among the features",
        "data/table.py",
        "for name in self.schema if name != self.label]",
        "for name in self.schema]",
        ("tests/data/test_encode.py", "-k", "never_looked_at"),
    ),
    Break(
        "tables: a category never seen",
        "data/encode.py",
        "at[at == UNSEEN] = len(categories)",
        "at[at == UNSEEN] = 0",
        ("tests/data/test_encode.py", "-k", "never_seen"),
    ),
    Break(
        "tables: leading zeros",
        "data/readers.py",
        'r"^-?(0|[1-9][0-9]{0,17})(\\.0*)?$"',
        'r"^-?[0-9]{1,18}(\\.0*)?$"',
        ("tests/data/test_readers.py", "-k", "ids_in_csv"),
    ),
    Break(
        "tables: a formula",
        "data/writers.py",
        """lambda at: "" if not at.start() and is_number else "'", text""",
        'lambda at: "", text',
        ("tests/attacks/test_csv_formula.py",),
    ),
    Break(
        "tables: a password",
        "data/sql.py",
        '        return "***"',
        "        return password",
        ("tests/data/test_sql.py", "-k", "password"),
    ),
    Break(
        "tables: fresh ids in order",
        "data/scenario.py",
        "numbers = rng.permutation(count)",
        "numbers = np.arange(count)",
        ("tests/data/test_scenario.py", "-k", "tell_nothing"),
    ),
    Break(
        "generate: unseen category",
        "generate/encoder.py",
        "                if strict:",
        "                if False:",
        ("tests/generate/test_base.py", "-k", "cannot_be"),
    ),
    Break(
        "generate: best weights",
        "generate/training.py",
        "        module.load_state_dict(state)",
        "        pass",
        ("tests/generate/test_training.py", "-k", "best"),
    ),
    Break(
        "generate: B's own seed",
        "generate/vfgain.py",
        'seed = self.site.own_seed(int(params["seed"]), "generator")',
        'seed = int(params["seed"])',
        ("tests/attacks/test_known_weights.py",),
    ),
    Break(
        "completion: order of rows",
        "methods/completion/merging.py",
        "order = secret_permutation(len(rows))",
        "order = np.arange(len(rows))",
        ("tests/methods/completion/test_fedpsg_pum.py", "-k", "order_of_rows_is_secret"),
    ),
    Break(
        "completion: observed range",
        "methods/completion/self_training.py",
        "values = values.clip(np.nanmin(target.truth), np.nanmax(target.truth))",
        "pass",
        ("tests/methods/completion/test_fedpsg_pum.py", "-k", "step_for_step"),
    ),
    Break(
        "completion: rotation",
        "methods/completion/linear.py",
        "turn = secret_rotation(len(eigenvalues))",
        "turn = np.eye(len(eigenvalues))",
        ("tests/methods/completion/test_linear.py", "-k", "undo_the_rotation"),
    ),
    Break(
        "house: labels leave by default",
        "federation/policy.py",
        "frozenset(KINDS) - REFUSED_BY_DEFAULT",
        "frozenset(KINDS)",
        ("tests/federation/test_federation.py",),
    ),
    Break(
        "house: secrets for everybody",
        "_files.py",
        "0o600 if private else 0o666",
        "0o666",
        ("tests/test_files.py",),
    ),
    Break(
        "house: half a file stays",
        "_files.py",
        "        part.unlink(missing_ok=True)",
        "        pass",
        ("tests/test_files.py",),
    ),
    Break(
        "house: whose labels count",
        "flow/scoring.py",
        "return reference.own or estimator.learnt_from(test) == [reference.one]",
        "return True",
        ("tests/flow/test_scoring.py",),
    ),
    Break(
        "house: a preset is passed over",
        "methods/registry.py",
        "made = found(**changes) if preset is None else found.preset(preset, **changes)",
        "made = found(**changes)",
        ("tests/methods/test_contract.py",),
    ),
    Break(
        "house: a kind read as less",
        "audit/statement.py",
        "severity, tells, mend = kind.severity, kind.tells, kind.lowered_by",
        "pass",
        ("tests/audit/test_statement.py",),
    ),
    Break(
        "flow: changed settings",
        "flow/steps.py",
        "if before is not None and before.fingerprint == mark:",
        "if before is not None:",
        (f"{STAGES}::test_what_other_settings_touch_is_done_again",),
    ),
    Break(
        "flow: changed files",
        "flow/steps.py",
        "if self._outputs(paths) == before.outputs:",
        "if True:",
        (f"{STAGES}::test_a_file_somebody_changed_is_made_again",),
    ),
    Break(
        "flow: hashes that anybody can test",
        "flow/steps.py",
        "hmac.new(self._secret, digestmod",
        'hmac.new(b"", digestmod',
        ("tests/flow/test_manifest.py",),
    ),
    Break(
        "flow: an alignment of another table",
        "flow/kept.py",
        "if not np.array_equal(everything, np.arange(rows)):",
        "if False:",
        ("tests/flow/test_manifest.py",),
    ),
    Break(
        "flow: two runs in one folder",
        "flow/manifest.py",
        "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        (f"{RUNS}::test_a_run_that_is_going_on_is_left_alone",),
    ),
    Break(
        "flow: anything is replaced",
        "flow/manifest.py",
        "if folder.exists() and not (force and _is_ours(folder)):",
        "if folder.exists() and not force:",
        (f"{RUNS}::test_force_replaces_runs_only",),
    ),
    Break(
        "flow: other people are set aside",
        "flow/reading.py",
        'plainest = RULES["number"]',
        'plainest = RULES["exact"]',
        (f"{RUNS}::test_split_by_id_takes_the_same_people_everywhere",),
    ),
    Break(
        "flow: the best, not the simplest",
        "methods/auto/folds.py",
        "if statistics.fmean(behind) <= error:",
        "if statistics.fmean(behind) <= 0:",
        ("tests/flow/test_choosing.py",),
    ),
    Break(
        "auto: held-out rows are trained on",
        "methods/auto/folds.py",
        "kept = np.setdiff1d(np.arange(len(table)), held_out)",
        "kept = np.arange(len(table))",
        (AUTO_FOLDS,),
    ),
    Break(
        "auto: labels' likelihood is forgotten",
        "methods/auto/folds.py",
        "keep_likelihood(site, name, known)",
        "pass",
        (AUTO_FOLDS,),
    ),
    Break(
        "auto: rows are held out anew",
        "split/workers.py",
        "if (folds >= 0).any():",
        "if False:",
        (AUTO_FOLDS,),
    ),
    Break(
        "auto: chosen and judged on the same rows",
        "methods/auto/blend.py",
        "found[here] = pool_of(held.rows(~here))(held.rows(here))",
        "found[here] = pool_of(held)(held.rows(here))",
        ("tests/methods/auto/test_blend.py",),
    ),
    Break(
        "auto: completed rows are not weighed",
        "methods/auto/auto.py",
        "completed = [each.slug for each in able if each.completed]",
        "completed = list[str]()",
        ("tests/methods/auto/test_auto.py::test_completed_rows_that_say_nothing_are_left_out",),
    ),
    Break(
        "starter: a method by name",
        "flow/config/starter.toml.j2",
        'name = "auto"                # the methods that fit',
        'name = "vfl"                 # the methods that fit',
        ("tests/flow/config/test_starter.py",),
    ),
    Break(
        "completing: it pays whatever comes of it",
        "report/record.py",
        "if gain <= 0:",
        "if False:",
        ("tests/report/test_record.py",),
    ),
    Break(
        "auto: the majority judges itself",
        "flow/choosing.py",
        "main_metric([] if self._by_majority else self.metrics, scores)",
        "main_metric(self.metrics, scores)",
        ("tests/flow/test_choosing.py", "-k", "repeats_the_majority"),
    ),
    Break(
        "auto: one weight for all rows",
        "methods/auto/blend.py",
        "each = [weights_of(held.rows(held.kind == kind), common) for kind in (0, 1)]",
        "each = [common, common]",
        ("tests/methods/auto/test_blend.py",),
    ),
    Break(
        "auto: nobody is left out",
        "methods/auto/blend.py",
        "if lost.mean() <= lost.std() / np.sqrt(len(lost)):",
        "if False:",
        ("tests/methods/auto/test_blend.py",),
    ),
    Break(
        "flow: a password in the copy",
        "flow/config/rewriting.py",
        'party["uri"] = with_references(uri, str(party.get("name", "")))',
        'party["uri"] = uri',
        ("tests/flow/config/test_environment.py",),
    ),
    Break(
        "flow: the environment in a message",
        "flow/config/references.py",
        'words = words.replace(each, f"${{{name}}}")',
        "pass",
        ("tests/flow/config/test_environment.py",),
    ),
    Break(
        "flow: problems one after the other",
        "flow/config/loading.py",
        "list(dict.fromkeys([*problems, *holds(found)]))",
        "list(dict.fromkeys(problems or holds(found)))",
        ("tests/flow/config/test_loading.py",),
    ),
    Break(
        "flow: an absent label party",
        "flow/plan.py",
        "asked = None if corrected else params.get",
        "asked = params.get",
        ("tests/flow/test_plan.py",),
    ),
    Break(
        "preflight: rare classes are told",
        "preflight/skew.py",
        "self._reported[enough] = self._counts[enough]",
        "self._reported[:] = self._counts",
        (FEW,),
    ),
    Break(
        "preflight: rows without a label vote",
        "preflight/agreement.py",
        "position.get(value, -1)",
        "position.get(value, 0)",
        ("tests/preflight/test_agreement.py",),
    ),
    Break(
        "preflight: few rows that both label",
        "preflight/agreement.py",
        "enough = both is not None and int(both.sum()) >= worker.site.rows.least",
        "enough = both is not None",
        ("tests/preflight/test_agreement.py",),
    ),
    Break(
        "preflight: a count that serves again",
        "preflight/agreement.py",
        "worker.site.state.pop(",
        "worker.site.state.get(",
        ("tests/preflight/test_agreement.py",),
    ),
    Break(
        "preflight: few own labels",
        "preflight/agreement.py",
        "given * (given.sum() >= worker.site.rows.least)",
        "given",
        ("tests/preflight/test_agreement.py",),
    ),
    Break(
        "cli: one exit code",
        "cli/entry.py",
        "return error.exit_code",
        "return 1",
        ("tests/cli/test_cli.py",),
    ),
    Break(
        "secure: a mask twice",
        "secure/channel.py",
        "if not isinstance(number, int) or number <= last:",
        "if False:",
        ("tests/secure/test_channel.py",),
    ),
    Break(
        "secure: a message again",
        "secure/channel.py",
        "if number < self._received:",
        "if False:",
        ("tests/secure/test_channel.py",),
    ),
    Break(
        "secure: a role in another's place",
        "secure/channel.py",
        "if role != self.counterpart:",
        "if False:",
        ("tests/secure/test_channel.py",),
    ),
    Break(
        "secure: a changed key",
        "secure/keys.py",
        "if not hmac.compare_digest(known, public):",
        "if False:",
        ("tests/secure/test_keys.py",),
    ),
    Break(
        "secure: no flooding",
        "secure/bfv.py",
        "context.flood(hidden, self._profile.flood_bits(self._plain_bits))",
        "pass",
        (f"{PRODUCTS}::test_what_the_key_holder_gets_is_uniform_flooded_and_afresh",),
    ),
    Break(
        "secure: no mask on a product",
        "secure/bfv.py",
        "mask = uniform_below_power(self._plain_bits, DEGREE)",
        "mask = np.zeros(DEGREE, np.uint64)",
        (f"{PRODUCTS}::test_what_the_key_holder_gets_is_uniform_flooded_and_afresh",),
    ),
    Break(
        "secure: a carry is told",
        "secure/columns.py",
        "return words if bits == 64 else words & np.uint64((1 << bits) - 1)",
        "return words",
        (f"{PRODUCTS}::test_shares_are_uniform",),
    ),
    Break(
        "secure: limbs that overflow",
        "secure/exact.py",
        "if self.count == self.exact_blocks:",
        "if False:",
        (f"{PRODUCTS}::test_wrapping_product_at_its_edges",),
    ),
    Break(
        "secure: an alignment nobody confirmed",
        "secure/psi.py",
        "if silent or not self._partners:",
        "if False:",
        ("tests/attacks/test_alignment_with_nobody.py",),
    ),
    Break(
        "secure: ids in the order of the table",
        "secure/psi.py",
        "for row in self._order[start : start + count]",
        "for row in range(len(self.keys))[start : start + count]",
        ("tests/secure/test_psi.py",),
    ),
    Break(
        "secure: an address nobody named",
        "secure/psi_spu.py",
        "if said not in (address, host):",
        "if False:",
        ("tests/attacks/test_confirmed_addresses.py",),
    ),
    Break(
        "secure: the sum of one",
        "secure/sums.py",
        "or me not in parties or len(parties) < LEAST_PARTIES:",
        "or me not in parties:",
        ("tests/secure/test_sums_roles.py",),
    ),
    Break(
        "secure: a round again",
        "secure/sums.py",
        "        self._last_round = number\n",
        "",
        ("tests/secure/test_sums_roles.py",),
    ),
    Break(
        "secure: a part of a mask twice",
        "secure/keys.py",
        "if not self._last < number < 1 << 64:",
        "if not number < 1 << 64:",
        ("tests/secure/test_keys.py",),
    ),
    Break(
        "secure: another array without preparing",
        "secure/sums.py",
        "return (now.shape, now.kind, now.opens) == (last.shape, last.kind, last.opens)",
        "return now.shape == last.shape",
        ("tests/secure/test_sums_roles.py",),
    ),
    Break(
        "secure: masks whatever was agreed",
        "secure/sums.py",
        'digest = hashlib.sha256(f"{named}|{current.name}".encode()).hexdigest()',
        'digest = ""',
        ("tests/secure/test_sums.py", "tests/secure/test_sums_roles.py"),
    ),
    Break(
        "secure: keys of all pairs for the same order",
        "secure/align.py",
        "introduce(workers, hub=first)",
        "introduce(workers)",
        ("tests/secure/test_align.py", "-k", "same_order"),
    ),
    Break(
        "secure: a ring of two neighbours",
        "secure/sums.py",
        "steps = range(1, NEIGHBOURS // 2 + 1)",
        "steps = range(1, 2)",
        ("tests/secure/test_sums.py", "-k", "neighbours"),
    ),
    Break(
        "secure: a mask opened for others",
        "secure/sums.py",
        " or tuple(parties) != current.parties:",
        ":",
        ("tests/secure/test_sums_roles.py",),
    ),
    Break(
        "secure: a sum that is not flooded",
        "secure/sums_he.py",
        "FLOOD_BITS = 40",
        "FLOOD_BITS = 4",
        ("tests/secure/test_sums_roles.py",),
    ),
    Break(
        "secure: bounds asked for ever",
        "secure/bounds.py",
        "if len(before) >= MOST_BOUNDS:",
        "if False:",
        ("tests/attacks/test_error_oracle.py",),
    ),
    Break(
        "learn: a row is a pair with itself",
        "learn/metrics.py",
        "own = float((inside * (1.0 - inside)).sum())",
        "own = 0.0 * float(inside.sum())",
        ("tests/learn/test_metrics.py",),
    ),
    Break(
        "learn: no mirror",
        "learn/nets.py",
        "return (self._features(images) + self._features(images.flip(3))) / 2",
        "return self._features(images)",
        ("tests/learn/test_whitened.py",),
    ),
    Break(
        "learn: dropout of torch's own",
        "learn/nets.py",
        "kept = torch.rand(values.shape, generator=self.generator, device=values.device)",
        "kept = torch.rand(values.shape, device=values.device)",
        ("tests/learn/test_nets.py",),
    ),
    Break(
        "federation: messages that swell",
        "federation/wire.py",
        "if self.memory < 0 or self.items < 0:",
        "if False:",
        ("tests/attacks/test_wire_memory.py",),
    ),
    Break(
        "federation: texts without their tags",
        "federation/wire.py",
        "self.nbytes += (1 + _U32.size) * len(values) + len(joined)",
        "self.nbytes += _U32.size * len(values) + len(joined)",
        ("tests/federation/test_wire.py", "-k", "counted_at_once"),
    ),
    Break(
        "federation: two forms of one number",
        "federation/wire.py",
        'if _whole_number(value)[0] != b"I" + _U32.pack(width) + raw:',
        "if False:",
        ("tests/attacks/test_wire_memory.py",),
    ),
    Break(
        "federation: a ledger without a chain",
        "federation/ledger.py",
        'return hashlib.sha256(f"{before}{text}".encode()).hexdigest()',
        "return hashlib.sha256(text.encode()).hexdigest()",
        ("tests/attacks/test_ledger_tampering.py",),
    ),
    Break(
        "federation: a crash explains everything",
        "federation/reconcile.py",
        "return here.after(self.there.written, self.here.last_seconds)",
        "return here.count",
        ("tests/federation/test_reconcile.py",),
    ),
    Break(
        "federation: a message twice",
        "federation/engines/flare/host.py",
        "if not self._taken.take(number):",
        "if False:",
        ("tests/federation/flare/test_host.py",),
    ),
    Break(
        "federation: errors without end",
        "federation/engines/flare/host.py",
        "        self._failures.admit()",
        "        pass",
        ("tests/attacks/test_error_oracle.py",),
    ),
    Break(
        "federation: words of an exception leave",
        "federation/engines/flare/messages.py",
        "if isinstance(error, PartyFailed) and not open_rows:",
        "if False:",
        ("tests/federation/flare",),
    ),
    Break(
        "federation: weights of any size",
        "federation/policy.py",
        "if not largest <= LARGEST_WEIGHT:",
        "if False:",
        ("tests/attacks/test_crafted_weights.py",),
    ),
    Break(
        "federation: predictions uncounted",
        "federation/policy.py",
        "if len(seen) >= most:",
        "if False:",
        ("tests/attacks/test_crafted_weights.py",),
    ),
    Break(
        "federation: label draws without a ceiling",
        "federation/labels.py",
        "if before + epsilon > ceiling + _ROUNDING:",
        "if False:",
        ("tests/attacks/test_label_privacy.py",),
    ),
    Break(
        "federation: labels drawn anew",
        "federation/labels.py",
        "grown = replace(draw, told=draw.told | fresh)",
        "grown = replace(draw, told=fresh)",
        ("tests/attacks/test_label_privacy.py", "tests/split/test_label_dp.py"),
    ),
    Break(
        "federation: any worker in any run",
        "federation/bound.py",
        "if worker not in self.calls:",
        "if False:",
        ("tests/attacks/test_methods_bound.py", "-k", "vfl_does_not_use"),
    ),
    Break(
        "deploy: addresses nobody has seen",
        "deploy/party_file.py",
        "    if missing:",
        "    if False:",
        ("tests/attacks/test_confirmed_addresses.py",),
    ),
    Break(
        "deploy: jobs that bring code",
        "deploy/provision.py",
        '"byoc": "none"',
        '"byoc": "any"',
        ("tests/deploy/test_provision.py",),
    ),
    Break(
        "deploy: a yes to another run",
        "deploy/consent.py",
        '.strip() == f"yes {hello.run}":',
        '.startswith("yes"):',
        ("tests/deploy/test_party_screen.py",),
    ),
    Break(
        "audit: sealed values are read",
        "audit/recorder.py",
        "or not call.sealed",
        "or True",
        ("tests/audit/test_running.py", "-k", "cannot_read"),
    ),
    Break(
        "audit: what anybody could guess is a leak",
        "audit/learner.py",
        "guess, score - guess, low - guess, high - guess)",
        "guess, score, low, high)",
        ("tests/audit/test_labels.py",),
    ),
    Break(
        "audit: a view that is not looked at",
        "audit/learner.py",
        "for view in views if view.shape[1]",
        "for view in views[:1] if view.shape[1]",
        ("tests/audit/test_learner.py",),
    ),
    Break(
        "split: what a top draws is known to all",
        "split/partial.py",
        'self.site.own_seed(epoch ^ name, "draws")',
        "epoch ^ name",
        ("tests/attacks/test_known_weights.py", "-k", "AbsentPartner"),
    ),
    Break(
        "split: the last weights are kept",
        "split/training.py",
        "                session.top.restore_best()\n",
        "                pass\n",
        ("tests/split/test_training.py", "-k", "early_stopping"),
    ),
    Break(
        "length: few steps on few rows",
        "split/features.py",
        "self.passes = -(-least // max(1, len(once)))",
        "self.passes = 1",
        ("tests/split/test_length.py", "-k", "several_whole_passes"),
    ),
    Break(
        "length: no refit",
        "split/training.py",
        "if best.judged and asked.refit:",
        "if False:",
        ("tests/split/test_length.py", "-k", "refitting"),
    ),
    Break(
        "length: a collapse is not seen",
        "split/training.py",
        "            if not tried[-1].collapsed:\n",
        "            if True:\n",
        ("tests/split/test_length.py", "-k", "collapse_begins_again"),
    ),
    Break(
        "scaling: an absent partner as if it were there",
        "split/training.py",
        "                self._predict(chunk, [name])\n",
        "                self._predict(chunk, None)\n",
        ("tests/split/test_scaling.py", "-k", "too_sure"),
    ),
    Break(
        "scaling: forgotten by the refit",
        "split/workers.py",
        "part.top.scaling = before.scaling",
        "pass",
        ("tests/split/test_scaling.py", "-k", "too_sure"),
    ),
    Break(
        "split: held-out rows are trained on",
        "split/training.py",
        "self.train = np.setdiff1d(usable, self.validation)",
        "self.train = usable",
        ("tests/methods/vertical/test_vfl_baselines.py", "-k", "aligned_rows_judge"),
    ),
    Break(
        "split: a foreign checkpoint",
        "split/training.py",
        'if state["fingerprint"] != self._mark():',
        "if False:",
        ("tests/split/test_training.py", "-k", "foreign_checkpoint"),
    ),
    Break(
        "split: shared bottoms count alike",
        "split/partial.py",
        "alpha=rows[name] / total",
        "alpha=1 / len(found)",
        ("tests/split/test_sharing.py", "-k", "counts_by"),
    ),
    Break(
        "split: rows that a party lacks",
        "split/features.py",
        "return numbers if self._present is None else numbers[self._present[numbers]]",
        "return numbers",
        ("tests/split/test_sharing.py", "-k", "any_order"),
    ),
    Break(
        "split: reported labels taken as true",
        "split/labels.py",
        "np.vstack([self.response.T,",
        "np.vstack([np.eye(len(self.classes)),",
        ("tests/split/test_label_dp.py", "-k", "told_labels"),
    ),
    Break(
        "risa: all learn from all rows",
        "methods/risa/training.py",
        "return found * (self.unseen.index_select(0, numbers) != members)",
        "return found.expand(len(members), -1)",
        ("tests/methods/risa/test_risa.py", "-k", "must_not_see"),
    ),
    Break(
        "risa: powers below zero",
        "methods/risa/trust.py",
        "bounds = [(0.0, None)] * sources",
        "bounds = [(None, None)] * sources",
        ("tests/methods/risa/test_trust.py",),
    ),
    Break(
        "risa: few rows learnt by heart",
        "methods/risa/risa.py",
        "least = min(least, STEPS_OF_TWO)",
        "pass",
        ("tests/split/test_length.py", "-k", "enough_steps"),
    ),
    Break(
        "risa: a mean of one row",
        "methods/risa/network.py",
        "MIN_MEAN_ROWS = 10",
        "MIN_MEAN_ROWS = 1",
        ("tests/methods/risa/test_network.py", "-k", "few_rows"),
    ),
    Break(
        "risa: completed sides count wholly",
        "methods/risa/training.py",
        "present[number] = present[number] * self.reliable[name].index_select(0, numbers)",
        "pass",
        ("tests/methods/risa/test_trusted_sides.py",),
    ),
    Break(
        "risa: judged by rows it learnt",
        "methods/risa/risa.py",
        "pools[0] = np.setdiff1d(pools[0], held_out)",
        "pass",
        ("tests/methods/risa/test_risa.py", "-k", "trust_rests"),
    ),
    Break(
        "annotators: T read by rows",
        "methods/annotators/worker.py",
        "rows = np.log(np.maximum(matrix, np.exp(LOG_FLOOR))).T",
        "rows = np.log(np.maximum(matrix, np.exp(LOG_FLOOR)))",
        ("tests/methods/annotators/test_inc_protection.py", "-k", "stated_error"),
    ),
    Break(
        "annotators: a tie has no order",
        "methods/annotators/aggregation.py",
        "counts.argmax(1), -1)",
        "counts.shape[1] - 1 - counts[:, ::-1].argmax(1), -1)",
        ("tests/methods/annotators/test_crowd.py", "-k", "tied"),
    ),
    Break(
        "annotators: silence is the first class",
        "methods/annotators/corrected.py",
        "(trust >= least) & (trust > 0)",
        "(trust >= least)",
        ("tests/methods/annotators/test_votes_alone.py", "-k", "without_votes"),
    ),
    Break(
        "annotators: the network that has seen a row",
        "methods/annotators/inc.py",
        "outputs[seen] = _outputs(two, seen)",
        "pass",
        ("tests/methods/annotators/test_inc.py", "-k", "two_helpers"),
    ),
    Break(
        "horizontal: parties count alike",
        "methods/horizontal/rounds.py",
        "share = (share / share.sum()).to(weights.device)",
        "share = torch.ones_like(share) / len(share)",
        ("tests/methods/horizontal/test_rounds.py", "-k", "fedavg"),
    ),
    Break(
        "horizontal: few rows are in a sum",
        "methods/horizontal/worker.py",
        "return rows if len(rows) >= self.site.rows.least else rows[:0]",
        "return rows",
        ("tests/methods/horizontal/test_sage.py", "-k", "judged"),
    ),
    Break(
        "horizontal: too few rows are judged",
        "methods/horizontal/estimator.py",
        "if round(float(total()[0])) < least:",
        "if False:",
        ("tests/methods/horizontal/test_sage.py", "-k", "are_not_judged"),
    ),
    Break(
        "horizontal: a small table refuses to be judged",
        "methods/horizontal/estimator.py",
        "SumSession(self.fed.workers(SumWorker))",
        "SumSession(fed.workers(SumWorker))",
        ("tests/methods/horizontal/test_sage.py", "-k", "table_below_min_rows"),
    ),
    Break(
        "horizontal: who is in no score is not said",
        "methods/horizontal/estimator.py",
        '{said}"] if few else []',
        '{said}"] if not few else []',
        ("tests/methods/horizontal/test_clients.py", "-k", "too_few_test_rows"),
    ),
    Break(
        "horizontal: weights that are no numbers",
        "methods/horizontal/worker.py",
        "        self._require_numbers(update.weights, number)\n",
        "",
        ("tests/methods/horizontal/test_sage.py", "-k", "diverges and none"),
    ),
    Break(
        "vertical: strangers among the aligned",
        "methods/vertical/vfl.py",
        "pool = alignment.unaligned if len(alignment.unaligned) else alignment.aligned",
        "pool = alignment.aligned",
        ("tests/methods/vertical/test_vfl_baselines.py", "-k", "stranger_never"),
    ),
    Break(
        "vertical: rows without a label are a class",
        "methods/vertical/few_shot.py",
        'reduction="sum", ignore_index=-1)',
        'reduction="sum", ignore_index=-2)',
        ("tests/methods/vertical/test_vfl_baselines.py", "-k", "rows_without_a_label"),
    ),
    Break(
        "methods: a worker nobody declared",
        "methods/vertical/vfl.py",
        'declare("vfl", BottomWorker, TopWorker)',
        'declare("vfl", TopWorker)',
        ("tests/attacks/test_methods_bound.py", "-k", "uses_what_is_declared and vfl"),
    ),
    Break(
        "console: no token",
        "console/server.py",
        "elif not self._is_known():",
        "elif False:",
        (CONSOLE,),
    ),
    Break(
        "console: no csrf",
        "console/server.py",
        'if not hmac.compare_digest(form.pop("csrf", "").encode(), self.app.csrf.encode()):',
        'if form.pop("csrf", "") is None:',
        (CONSOLE,),
    ),
    Break(
        "console: any host",
        "console/server.py",
        'return (self.headers.get("Host") or "") in (f"{LOOPBACK}:{port}", f"localhost:{port}")',
        "return port is not None",
        (CONSOLE,),
    ),
    Break(
        "console: an answer to another question",
        "deploy/consent.py",
        "(mark is not None and mark != question.mark)",
        "False",
        (CONSOLE,),
    ),
    Break(
        "console: the last answer counts",
        "deploy/consent.py",
        "os.link(part, kit / _ANSWER)  # whole, and only where there is none yet",
        "part.replace(kit / _ANSWER)",
        (CONSOLE,),
    ),
    Break(
        "console: a yes to more methods",
        "deploy/rules.py",
        'return asked <= named if self.answer == "yes" else bool(asked & named)',
        "return bool(asked & named)",
        (CONSOLE,),
    ),
    Break(
        "console: a rule withholds nothing",
        "deploy/party_file.py",
        "refuse=policy.refuse | refused_kinds(file.rule, hello)",
        "refuse=policy.refuse",
        (CONSOLE,),
    ),
)


def main(only: list[str]) -> int:
    chosen = [
        each for each in BREAKS if not only or any(each.name.startswith(word) for word in only)
    ]
    missed = 0
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    sys.path[0] = str(ROOT / "src")
    sys.dont_write_bytecode = True  # of a line made wrong nothing stays
    for library in LIBRARIES:
        importlib.import_module(library)
    for each in chosen:
        path = ROOT / "src" / "fedmend" / each.file
        source, stat = path.read_bytes(), path.stat()
        right, wrong = each.right.encode(), each.wrong.encode()
        if right not in source:
            print(f"GONE      {each.name}: its line is not in {each.file}", flush=True)
            missed += 1
            continue
        try:
            path.write_bytes(source.replace(right, wrong, 1))
            code, told = tried(each.tests)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        failed = [line for line in told.splitlines() if line.startswith(("FAILED", "ERROR"))]
        noticed, word = (True, "noticed") if code == 1 and failed else (False, "MISSED")
        missed += not noticed
        shown = failed[:1] or told.splitlines()[-1:]
        print(f"{word:<9} {each.name}: {shown}", flush=True)
    print(f"{missed} of {len(chosen)} were missed or are gone")
    return min(missed, 1)


def tried(tests: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and output of these tests, in a process that has the libraries loaded already."""
    with tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if not child:
            for stream in (1, 2):
                os.dup2(told.fileno(), stream)
            code = 3
            try:
                code = int(pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]))
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        return os.waitstatus_to_exitcode(status), told.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
