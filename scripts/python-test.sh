#!/usr/bin/env bash
# Test the Python package: the wheel is built and installed in build/venv, and python/tests compares
# it with the command postproc, which is built, too. Both have debug assertions; PROFILE=release tests
# the wheel that `make wheel` builds. test_perfetto.py tests the command alone: Perfetto's Python package
# reads what `postproc export --format perfetto` writes. Arguments are passed to pytest.
. "$(dirname "$0")/lib.sh"
. "$TOP/scripts/python.sh"
export CARGO_TARGET_DIR=$BUILD/target
export PROFILE=${PROFILE:-dev}
built_wheel "$PROFILE"
# As scripts/check.sh builds it. With -p, crates would have other features, and be built once more.
step "$BUILD/log/python-postproc.log" "building postproc" \
	cargo build --locked --profile "$PROFILE" --manifest-path "$TOP/Cargo.toml" --workspace --exclude kvmtrace-guest \
	--bin postproc --features postproc/testing
install_wheel venv
export KVMTRACE_POSTPROC=$built/postproc
# The folder python/ must not be where modules are looked for: it has the sources of the package,
# without the native module.
cd "$TOP/python/tests"
exec "$BUILD/venv/bin/python" -P -m pytest -q -p no:cacheprovider --rootdir "$TOP/python" -c "$TOP/python/pyproject.toml" "$TOP/python/tests" "$@"
