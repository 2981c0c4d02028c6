#!/usr/bin/env bash
# Run the jobs of kvmtrace.fleet on a local cluster of Spark with two executor processes, compare them with
# postproc, and measure them (python/fleet_on_spark.py). Java is the distribution's; PySpark is from PyPI, with
# the versions of python/requirements-fleet.txt, in an environment of its own in build/.
#   TRACES=N        so many traces instead of 1,000
#   REPEAT=N        measure so often, and take the best
#   JUDGE=0         a target that is missed is only reported
#   PROFILE=dev     programs with debug assertions, which are slow
#
# After a change of python/requirements-fleet.in, its versions are made anew by
#   uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
#     python/requirements-fleet.in -o python/requirements-fleet.txt
. "$(dirname "$0")/lib.sh"
. "$TOP/scripts/python.sh"
export CARGO_TARGET_DIR=$BUILD/target
export PROFILE=${PROFILE:-release}
command -v java >/dev/null || install_packages default-jre-headless
version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
[ "${version:-0}" -ge 17 ] || die "java has version ${version:-?}, and PySpark needs 17 or later: install default-jre-headless"
# Spark finds the Java that the command is of.
JAVA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
export JAVA_HOME
built_wheel "$PROFILE"
step "$BUILD/log/fleet-postproc.log" "building postproc" \
	cargo build --locked --profile "$PROFILE" --manifest-path "$TOP/Cargo.toml" -p postproc --bin postproc --example synthesize
venv fleet-venv "$TOP/python/requirements-fleet.txt" PySpark
install_wheel fleet-venv
# Only here is PySpark, whose types the jobs have. What else is not here has no types.
cd "$BUILD"
step "$BUILD/log/fleet-types.log" "types of the jobs" "$BUILD/venv/bin/python" -P -m mypy --no-incremental \
	--config-file "$TOP/python/pyproject.toml" --ignore-missing-imports \
	--python-executable "$BUILD/fleet-venv/bin/python" -m kvmtrace.fleet
say "running the jobs on Spark"
exec "$BUILD/fleet-venv/bin/python" -P "$TOP/python/fleet_on_spark.py" \
	"$built/postproc" "$built/examples/synthesize" "$BUILD/fleet" "${TRACES:-1000}" "${REPEAT:-1}"
