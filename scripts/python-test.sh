#!/usr/bin/env bash
# Test the Python package: the wheel is built and installed in build/venv, and python/tests compares
# it with the command postproc, which is built, too. Both have debug assertions; PROFILE=release tests
# the wheel that `make wheel` builds. test_perfetto.py tests the command alone: Perfetto's Python package
# reads what `postproc export --format perfetto` writes. Arguments are passed to pytest.
. "$(dirname "$0")/lib.sh"
. "$TOP/scripts/python.sh"
export PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$BUILD/target
export PROFILE=${PROFILE:-dev}
built_wheel "$PROFILE"
# With debug assertions, it is what scripts/check.sh has built for its tests. `cargo build` would give crates
# other features, and compile them once more.
case $PROFILE in
dev) build=(test --no-run) ;;
*) build=(build --profile "$PROFILE" --bin postproc) ;;
esac
step "$BUILD/log/python-postproc.log" "building postproc" \
	cargo "${build[@]}" --locked --manifest-path "$TOP/Cargo.toml" --workspace --exclude kvmtrace-guest
install_wheel venv
export KVMTRACE_POSTPROC=$built/postproc
# The folder python/ must not be where modules are looked for: it has the sources of the package,
# without the native module.
cd "$TOP/python/tests"
exec "$BUILD/venv/bin/python" -P -m pytest -q -p no:cacheprovider --rootdir "$TOP/python" -c "$TOP/python/pyproject.toml" "$TOP/python/tests" "$@"
