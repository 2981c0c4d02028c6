#!/usr/bin/env bash
# Run the jobs of kvmtrace.fleet on a local cluster of Spark with two executor processes, compare them with
# postproc, and measure them (python/fleet_on_spark.py). Java is the distribution's; PySpark is from PyPI, with
# the versions of python/requirements-fleet.txt, in an environment of its own in build/.
#   TRACES=N        so many traces instead of 1,000
#   REPEAT=N        measure so often, and take the best
#   PROFILE=dev     programs with debug assertions, which are slow
#
# After a change of python/requirements-fleet.in, its versions are made anew by
#   uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
#     python/requirements-fleet.in -o python/requirements-fleet.txt
. "$(dirname "$0")/lib.sh"
export CARGO_TARGET_DIR=$BUILD/target
export PROFILE=${PROFILE:-release}
command -v java >/dev/null || install_packages default-jre-headless
# Spark finds the Java that the command is of.
JAVA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
export JAVA_HOME
"$TOP/scripts/wheel.sh"
case $PROFILE in
release) wheel=$BUILD/wheel built=$CARGO_TARGET_DIR/release ;;
dev) wheel=$BUILD/wheel-dev built=$CARGO_TARGET_DIR/debug ;;
*) die "PROFILE is $PROFILE: it must be dev or release" ;;
esac
step "$BUILD/log/fleet-postproc.log" "building postproc" \
	cargo build --locked --profile "$PROFILE" --manifest-path "$TOP/Cargo.toml" -p postproc --bin postproc --example synthesize
venv=$BUILD/fleet-venv
python=$(command -v "${PYTHON:-python3}")
want=$("$python" -c 'import sys; print(sys.version, sys.base_prefix)' && sha256sum <"$TOP/python/requirements-fleet.txt")
if [ "$(cat "$venv/made-for" 2>/dev/null)" != "$want" ]; then
	rm -rf "$venv"
	"$python" -m venv "$venv" || die "no virtual environment could be made: install python3-venv"
	step "$BUILD/log/fleet-venv.log" "installing PySpark in build/fleet-venv" "$venv/bin/pip" \
		--disable-pip-version-check install --require-hashes -r "$TOP/python/requirements-fleet.txt"
	printf '%s\n' "$want" >"$venv/made-for"
fi
step "$BUILD/log/fleet-install.log" "installing the wheel in build/fleet-venv" \
	"$venv/bin/pip" --disable-pip-version-check install --no-index --no-deps --force-reinstall "$wheel"/*.whl
say "running the jobs on Spark"
exec "$venv/bin/python" -P "$TOP/python/fleet_on_spark.py" \
	"$built/postproc" "$built/examples/synthesize" "$BUILD/fleet" "${TRACES:-1000}" "${REPEAT:-1}"
