#!/usr/bin/env bash
# The version of everything, which stands in Cargo.toml alone ([workspace.package]).
#
#   scripts/version.sh            print it
#   scripts/version.sh --debian   print it as Debian writes it. Between two releases it has the date and
#                                 hash of the commit, so that apt sees which package is newer
#   scripts/version.sh --check    fail if a crate, Cargo.lock, CHANGELOG.md or the Python package has
#                                 another one
#
# A release is a commit with the tag vVERSION.
. "$(dirname "$0")/lib.sh"
cd "${KVMTRACE_TREE:-$TOP}"
version=$(sed -n '/^\[workspace\.package\]/,/^\[workspace\.lints/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$ ]] ||
	die "Cargo.toml has no version of [workspace.package], or a wrong one: '$version'"

# Whatever is built is no part of the sources, wherever it lies.
built=./${BUILD#"$PWD"/}
# What disagrees with the version, one a line.
disagreements() {
	local manifest name first
	while read -r manifest; do
		grep -qx 'version\.workspace = true' "$manifest" ||
			printf '%s: write "version.workspace = true"\n' "$manifest"
		name=$(sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"$/\1/p' "$manifest")
		grep -A1 -xF "name = \"$name\"" Cargo.lock | grep -qxF "version = \"$version\"" ||
			printf 'Cargo.lock: it has no %s %s: run cargo build\n' "$name" "$version"
	done < <(find . \( -path ./build -o -path "$built" \) -prune -o -name Cargo.toml ! -path ./Cargo.toml -print | sort)
	first=$(sed -n 's/^## //p' CHANGELOG.md | head -n 1)
	[ "${first%% *}" = "$version" ] || printf 'CHANGELOG.md: it begins with "%s"\n' "$first"
	sed -n '/^\[project\]/,/^\[project\./p' python/pyproject.toml | grep -qx 'dynamic = \["version"\]' ||
		printf 'python/pyproject.toml: it must take the version of the crate: dynamic = ["version"]\n'
}

case ${1:-} in
'') printf '%s\n' "$version" ;;
--debian)
	upstream=${version/-/\~}
	if [ -f .debian-version ]; then # in a release's archive
		cat .debian-version
	elif [ "$(git tag --points-at HEAD --list "v$version" 2>/dev/null)" = "v$version" ]; then
		printf '%s\n' "$upstream"
	else
		# Changes that are in no commit have no name.
		[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] && dirty= || dirty=.dirty
		TZ=UTC git log -1 --date=format-local:%Y%m%d.%H%M%S --format="$upstream~git%cd.%H" | cut -c "-$((${#upstream} + 28))" |
			sed "s/$/$dirty/"
	fi
	;;
--check)
	wrong=$(disagreements)
	[ -z "$wrong" ] || die "not everything has the version $version of Cargo.toml:"$'\n'"$wrong"
	# The comparison notices each kind of difference.
	if [ -z "${KVMTRACE_TREE:-}" ]; then
		copy=$BUILD/version-check
		for change in activator/Cargo.toml:'s/^version.*/version = "9.9.9"/' Cargo.lock:'s/^version = ".*/version = "9.9.9"/' \
			CHANGELOG.md:'s/^## .*/## 9.9.9/' python/pyproject.toml:'s/^dynamic.*/version = "9.9.9"/'; do
			rm -rf "$copy"
			while read -r f; do install -D -m 644 "$f" "$copy/$f"; done < <(
				find . \( -path ./build -o -path "$built" \) -prune -o -regex '.*/\(Cargo.toml\|Cargo.lock\|pyproject.toml\|CHANGELOG.md\)' -print)
			sed -i "${change#*:}" "$copy/${change%%:*}"
			! KVMTRACE_TREE=$copy "$TOP/scripts/version.sh" --check 2>/dev/null ||
				die "scripts/version.sh does not notice another version in ${change%%:*}"
		done
		rm -rf "$copy"
	fi
	;;
*) die "usage: scripts/version.sh [--debian|--check]" ;;
esac
