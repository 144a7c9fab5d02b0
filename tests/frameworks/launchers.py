"""What the tests of real launchers share: the ranks' script, and what has to come of it."""

import json
import subprocess
import sys
from pathlib import Path

import portaloader
from portaloader import launch
from portaloader.testing.helpers import passed_through

RANKS, SAMPLES = 3, 41


def check_ranks(framework, launcher, folder):
    """Start this file on three ranks by ``python -m LAUNCHER ...``: together they see each sample once, in as many steps."""
    command = [sys.executable, "-m", *launcher, __file__, framework, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert [found["shard"] for found in ranks] == [[rank, RANKS] for rank in range(RANKS)]
    assert [found["local"] for found in ranks] == [[rank, RANKS] for rank in range(RANKS)]
    assert {len(found["batches"]) for found in ranks} == {4}
    assert sorted(i for found in ranks for batch in found["batches"] for i in batch) == list(range(SAMPLES))


def main(framework, folder):
    items = [{"value": i} for i in range(SAMPLES)]
    with portaloader.get_loader(items, passed_through, framework=framework, batch_size=4) as loader:
        batches = [loader.to_numpy(batch)["id"].tolist() for batch in loader]
    found = launch.from_environment()
    shard, local = ([share.index, share.count] for share in (found.shard, found.local))
    Path(folder, f"rank{shard[0]}.json").write_text(json.dumps({"shard": shard, "local": local, "batches": batches}))


if __name__ == "__main__":
    main(*sys.argv[1:])
