#!/usr/bin/env bash
# Build the Python package kvmtrace as a wheel in build/wheel: one wheel for every CPython from 3.11
# on. All that takes is in a virtual environment in build/, with the versions of
# python/requirements.txt. PYTHON names another interpreter than python3. PROFILE=dev builds a wheel
# with debug assertions in build/wheel-dev, which takes less time, and which python-test.sh uses.
#
# After a change of python/requirements.in, its versions are made anew by
#   uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
#     python/requirements.in -o python/requirements.txt
. "$(dirname "$0")/lib.sh"
export CARGO_TARGET_DIR=$BUILD/target
python=$(command -v "${PYTHON:-python3}") || die "there is no ${PYTHON:-python3}: install python3 and python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
	die "$python is older than Python 3.11: name another one by PYTHON=…"
venv=$BUILD/venv
# The environment is made anew if the interpreter or a version has changed.
want=$("$python" -c 'import sys; print(sys.version, sys.base_prefix)' && sha256sum <"$TOP/python/requirements.txt")
if [ "$(cat "$venv/made-for" 2>/dev/null)" != "$want" ]; then
	rm -rf "$venv"
	"$python" -m venv "$venv" || die "no virtual environment could be made: install python3-venv"
	step "$BUILD/log/venv.log" "installing Python packages in build/venv" "$venv/bin/pip" \
		--disable-pip-version-check install --only-binary :all: --require-hashes -r "$TOP/python/requirements.txt"
	printf '%s\n' "$want" >"$venv/made-for"
fi
profile=${PROFILE:-release}
out=$BUILD/wheel
[ "$profile" = release ] || out=$BUILD/wheel-$profile
rm -rf "$out"
# The bytes of a release do not depend on the folder.
[ "$profile" != release ] || build_flags
step "$BUILD/log/wheel.log" "building the wheel" \
	"$venv/bin/maturin" build --profile "$profile" --locked --manifest-path "$TOP/python/Cargo.toml" \
	--interpreter "$venv/bin/python" --out "$out"
say "the wheel: $(ls "$out"/*.whl)"
