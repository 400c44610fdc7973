//! Function names as people read them.

use std::borrow::Cow;

use symbolic_demangle::{Demangle as _, DemangleOptions};

/// How much of a mangled name is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, clap::ValueEnum)]
pub enum Demangle {
    /// With parameters and return type.
    Full,
    /// The qualified name alone. Procedure records of a PDB hold no more than that either.
    #[default]
    Short,
    /// As the record has it.
    None,
}

/// Longer names are shown as they are: the work of demangling is not bounded by anything else.
const MAX_MANGLED: usize = 8192;

/// The name of `raw` for people. What is not mangled (C names, names of procedure records) stays as it is.
pub fn demangle(raw: &str, style: Demangle) -> Cow<'_, str> {
    let options = match style {
        Demangle::Full => DemangleOptions::complete(),
        Demangle::Short => DemangleOptions::name_only(),
        Demangle::None => return Cow::Borrowed(raw),
    };
    if !may_be_mangled(raw) || raw.len() > MAX_MANGLED {
        return Cow::Borrowed(raw);
    }
    match symbolic_common::Name::from(raw).demangle(options) {
        Some(name) if !name.is_empty() => Cow::Owned(name),
        _ => Cow::Borrowed(raw),
    }
}

/// The name of a public or exported symbol of an x86 image without the decoration of its calling convention:
/// `_name`, `_name@8`, `@name@8`, `name@@8` (Microsoft, "Decorated names").
pub fn undecorate_x86(raw: &str) -> &str {
    if raw.starts_with('?') || raw.starts_with("__Z") || raw.starts_with("_Z") {
        return raw;
    }
    let (name, bytes) = match raw.rsplit_once('@') {
        Some((name, bytes)) if !bytes.is_empty() && bytes.bytes().all(|b| b.is_ascii_digit()) => (name, true),
        _ => (raw, false),
    };
    let plain = match name.as_bytes() {
        [b'_', ..] => &name[1..],
        [b'@', ..] if bytes => &name[1..],
        [.., b'@'] if bytes => &name[..name.len() - 1],
        _ if bytes => name,
        _ => raw,
    };
    if plain.is_empty() { raw } else { plain }
}

/// Prefixes of the mangling schemes: MSVC, Itanium (also as Rust's old scheme), Rust v0, Swift. Checked first, since
/// telling a scheme by trial takes longer than a lookup.
fn may_be_mangled(raw: &str) -> bool {
    matches!(
        raw.as_bytes(),
        [b'?', ..] | [b'@', b'?', ..] | [b'_', b'Z' | b'R' | b'T', ..] | [b'_', b'_', b'Z' | b'R', ..]
    ) || raw.starts_with("_$s")
        || raw.starts_with("$s")
        || raw.starts_with("$S")
        || raw.starts_with("___Z")
        || raw.starts_with("____Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected names: `undname` and `c++filt` for the same inputs, as their documentation prints them.
    #[test]
    fn names_of_each_scheme_become_readable() {
        for (raw, short) in [
            ("?what@exception@std@@UEBAPEBDXZ", "std::exception::what"),
            ("_ZN3foo3barEi", "foo::bar"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("main", "main"),
            ("`anonymous namespace'::f", "`anonymous namespace'::f"),
        ] {
            assert_eq!(demangle(raw, Demangle::Short), short);
        }
        assert_eq!(demangle("_ZN3foo3barEi", Demangle::Full), "foo::bar(int)");
        assert_eq!(demangle("_ZN3foo3barEi", Demangle::None), "_ZN3foo3barEi");
    }

    #[test]
    fn a_broken_mangled_name_stays_as_it_is() {
        for raw in ["?", "?@", "??@@", "_Z", "_ZN", "_R", "$s", "_ZN99999999999999999999a"] {
            assert_eq!(demangle(raw, Demangle::Full), raw);
        }
    }

    // Decorations after Microsoft's "Format of a C decorated name".
    #[test]
    fn calling_conventions_are_stripped_on_x86_only_where_they_are_one() {
        for (raw, plain) in [
            ("_cdecl_function", "cdecl_function"),
            ("_stdcall_function@12", "stdcall_function"),
            ("@fastcall_function@8", "fastcall_function"),
            ("vectorcall_function@@16", "vectorcall_function"),
            ("?cpp@@YAXXZ", "?cpp@@YAXXZ"),
            ("plain", "plain"),
            ("_", "_"),
        ] {
            assert_eq!(undecorate_x86(raw), plain);
        }
    }
}
