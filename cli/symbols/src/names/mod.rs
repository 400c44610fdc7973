//! Function names in readable form.

mod expansion;
mod itanium;
mod msvc;

use std::borrow::Cow;

/// How much of a mangled name is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Demangle {
    /// With parameters and return type.
    Full,
    /// The qualified name alone. Procedure records of a PDB hold no more than that either.
    #[default]
    Short,
    /// As the record has it.
    None,
}

/// Longer names are shown unchanged, since nothing else limits the work of demangling.
const MAX_MANGLED: usize = 8192;

/// Longer names are not shown, since nobody reads them.
const MAX_SHOWN: usize = 1 << 16;
/// Limit for the estimated characters of a demangled name. Longer ones would not be shown.
const MAX_EXPANSION: f64 = 1e6;

/// The readable form of `raw`. Names that are not mangled (C names, names of procedure records)
/// stay unchanged, and so do names that are too long, expand to too much, or have a part that the
/// demangler does not know. All demangling goes through this function.
pub fn demangle(raw: &str, style: Demangle) -> Cow<'_, str> {
    if style == Demangle::None {
        return Cow::Borrowed(raw);
    }
    let bounded = || raw.len() <= MAX_MANGLED && expansion::of(raw) <= MAX_EXPANSION;
    let shown = if may_be_mangled(raw) && bounded() {
        of_scheme(raw, style == Demangle::Full).filter(|name| is_trusted(name))
    } else {
        None
    };
    match shown {
        Some(name) => Cow::Owned(with_unnamed_namespaces(&name).into_owned()),
        None => with_unnamed_namespaces(raw),
    }
}

/// Demangles by the scheme that the prefix says.
fn of_scheme(raw: &str, full: bool) -> Option<String> {
    let rest = raw.trim_start_matches('_');
    match raw.as_bytes() {
        [b'?', ..] => msvc::demangle(raw, full),
        [b'@', b'?', ..] => msvc::demangle(&raw[1..], full),
        // `fastcall` of x86, which adds a number of bytes too.
        [b'@', b'_', b'Z', ..] => itanium::demangle(&raw[2..], full),
        [b'_', ..] if rest.starts_with('R') => {
            // Behind a dot or a dollar stand a vendor's additions.
            let name = raw.split(['.', '$']).next()?;
            rustc_demangle::try_demangle(name).ok().map(|name| format!("{name:#}"))
        }
        [b'_', ..] if rest.starts_with('Z') => itanium::demangle(rest, full),
        _ => swift(raw, full),
    }
}

#[cfg(feature = "swift")]
fn swift(raw: &str, full: bool) -> Option<String> {
    use symbolic_demangle::{Demangle as _, DemangleOptions};
    let options = if full { DemangleOptions::complete() } else { DemangleOptions::name_only() };
    symbolic_common::Name::from(raw).demangle(options)
}

#[cfg(not(feature = "swift"))]
fn swift(_: &str, _: bool) -> Option<String> {
    None
}

/// Whether a demangled text is a name: not empty, not longer than anybody reads, without empty
/// parts, and without the braces that demanglers put around what has no name in C++.
fn is_trusted(name: &str) -> bool {
    let doubtful = ["{virtual", "{offset", "{vtable", "::::", ":: ", " ::", "<::", "operator \"\""];
    (1..=MAX_SHOWN).contains(&name.len())
        && !name.ends_with("::")
        && !doubtful.iter().any(|text| name.contains(text))
        && !name.contains(char::is_control)
}

/// Whether a name is mangled and is shown so, since it could not be demangled.
pub(crate) fn stays_mangled(raw: &str, shown: &str) -> bool {
    raw == shown && may_be_mangled(raw)
}

/// MSVC writes an unnamed namespace in three ways: as `` `anonymous namespace'::f `` in procedure
/// records, as `` `anonymous-namespace'::T `` in types and so in the names of their inlined
/// members, and with a hash of the file (`?A0x8417fefe::f`) in the names of other inlined
/// functions. A function must have one name, so all get the form of the procedure records.
fn with_unnamed_namespaces(name: &str) -> Cow<'_, str> {
    const MARK: &str = "?A0x";
    const WORDS: &str = "`anonymous namespace'";
    const HYPHENATED: &str = "`anonymous-namespace'";
    if !name.contains(MARK) && !name.contains(HYPHENATED) {
        return Cow::Borrowed(name);
    }
    let name = name.replace(HYPHENATED, WORDS);
    let mut pieces = name.split(MARK);
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_hexdigit).count();
        if (1..=8).contains(&digits) && piece[digits..].starts_with("::") {
            shown += WORDS;
            shown += &piece[digits..];
        } else {
            shown += MARK;
            shown += piece;
        }
    }
    Cow::Owned(shown)
}

/// The kind of table that has the name of an x86 function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NameTable {
    /// Symbols of the linker: each C name has the decoration of its calling convention.
    Symbols,
    /// Exported names and linkage names of DWARF: a leading underscore alone is part of the name,
    /// since only conventions with a number of bytes are decorated there.
    Others,
}

/// The name of a symbol of an x86 image without the decoration of its calling convention: `_name`,
/// `_name@8`, `@name@8`, `name@@8` (Microsoft, "Decorated names").
pub fn undecorate_x86(raw: &str, table: NameTable) -> &str {
    if raw.starts_with('?') || raw.starts_with("__Z") || raw.starts_with("_Z") {
        return raw;
    }
    let (name, bytes) = match raw.rsplit_once('@') {
        Some((name, bytes)) if !bytes.is_empty() && bytes.bytes().all(|b| b.is_ascii_digit()) => (name, true),
        _ => (raw, false),
    };
    let plain = match name.as_bytes() {
        [b'_', ..] if bytes || table == NameTable::Symbols => &name[1..],
        [b'@', ..] if bytes => &name[1..],
        [.., b'@'] if bytes => &name[..name.len() - 1],
        _ if bytes => name,
        _ => raw,
    };
    if plain.is_empty() { raw } else { plain }
}

/// Prefixes of the mangling schemes: MSVC, Itanium (also as Rust's old scheme), Rust v0, Swift.
/// Checked first, since trying each scheme takes longer than a lookup.
fn may_be_mangled(raw: &str) -> bool {
    matches!(
        raw.as_bytes(),
        [b'?', ..]
            | [b'@', b'?', ..]
            | [b'@', b'_', b'Z', ..]
            | [b'_', b'Z' | b'R' | b'T', ..]
            | [b'_', b'_', b'Z' | b'R', ..]
    ) || raw.starts_with("_$s")
        || raw.starts_with("$s")
        || raw.starts_with("$S")
        || raw.starts_with("___Z")
        || raw.starts_with("____Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected names are those of `undname` and `c++filt` for the same inputs, from their
    // documentation.
    #[test]
    fn names_of_each_scheme_are_demangled() {
        for (raw, short) in [
            ("?what@exception@std@@UEBAPEBDXZ", "std::exception::what"),
            ("_ZN3foo3barEi", "foo::bar"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            #[cfg(feature = "swift")]
            ("$s4main3FooV3barSiyF", "Foo.bar"),
            #[cfg(not(feature = "swift"))]
            ("$s4main3FooV3barSiyF", "$s4main3FooV3barSiyF"),
            ("main", "main"),
            ("`anonymous namespace'::f", "`anonymous namespace'::f"),
        ] {
            assert_eq!(demangle(raw, Demangle::Short), short);
        }
        assert_eq!(demangle("_ZN3foo3barEi", Demangle::Full), "foo::bar(int)");
        assert_eq!(demangle("_ZN3foo3barEi", Demangle::None), "_ZN3foo3barEi");
    }

    // All three ways occur in conpty.pdb of node-pty 1.1.0.
    #[test]
    fn unnamed_namespaces_are_written_in_one_form() {
        for (raw, shown) in [
            ("?A0x8417fefe::in", "`anonymous namespace'::in"),
            ("a<?A0x1::b,?A0x22::c>::d", "a<`anonymous namespace'::b,`anonymous namespace'::c>::d"),
            (
                "`anonymous-namespace'::T<?A0x1::b>::f",
                "`anonymous namespace'::T<`anonymous namespace'::b>::f",
            ),
            ("?A0x8417fefe", "?A0x8417fefe"),
            ("?A0x::f", "?A0x::f"),
            ("?A0x123456789::f", "?A0x123456789::f"),
        ] {
            assert_eq!(demangle(raw, Demangle::Short), shown);
            assert_eq!(demangle(raw, Demangle::None), raw);
        }
    }

    #[test]
    fn a_broken_mangled_name_stays_unchanged() {
        for raw in ["?", "?@", "??@@", "_Z", "_ZN", "_R", "$s", "_ZN99999999999999999999a"] {
            assert_eq!(demangle(raw, Demangle::Full), raw);
        }
    }

    #[test]
    fn a_name_whose_types_multiply_stays_unchanged() {
        // A type, then function types that each refer three hundred times to the one before.
        let level = |digit: &str| format!("P6AX{}@Z", digit.repeat(300));
        let raw = format!("?f@@YAXPAUx@@{}{}{}{}@Z", level("0"), level("1"), level("2"), level("3"));
        assert_eq!(demangle(&raw, Demangle::Full), raw.as_str());
    }

    // Names of Microsoft's C++ library, with and without a repeated type.
    #[test]
    fn names_with_function_types_are_demangled() {
        for (raw, name) in [
            ("?_set_new_handler@@YAP6AHI@ZP6AHI@Z@Z", "_set_new_handler"),
            ("?signal@@YAP6AXH@ZHP6AXH@Z@Z", "signal"),
            ("?each@@YAXPAUx@@P6AX0@ZP6AX01@Z@Z", "each"),
        ] {
            assert_eq!(demangle(raw, Demangle::Short), name);
        }
    }

    // What the schemes gained last, and what demanglers do not name as C++ does. Expected is what
    // LLVM 19's undname and c++filt print, where they print a name of C++.
    #[test]
    fn new_and_rare_forms_are_demangled_or_stay_raw() {
        for line in include_str!("cases.tsv").lines().filter(|line| !line.starts_with('#')) {
            let (raw, expected) = line.split_once('\t').unwrap();
            assert_eq!(demangle(raw, Demangle::Short), expected);
        }
        assert_eq!(demangle("_ZN3geo2ttINS_3BoxEiEEvOT_IT0_E", Demangle::Short), "geo::tt<geo::Box, int>");
        // A text that lacks a part.
        for text in ["aw:: co_await", "{virtual override thunk({offset(-16)}, M3::b)}", "a::", ""] {
            assert!(!is_trusted(text), "{text}");
        }
    }

    #[test]
    fn an_underscore_of_exports_is_part_of_the_name() {
        for (raw, plain) in
            [("_exit_it", "_exit_it"), ("_std_api@4", "std_api"), ("@fast@8", "fast"), ("std@4", "std")]
        {
            assert_eq!(undecorate_x86(raw, NameTable::Others), plain);
        }
    }

    #[test]
    fn deeply_nested_types_stay_unchanged_and_end() {
        for level in ["PEA", "V?$a@", "P6A", "P8a@@EAA", "$1?a@", "?$a@V", "PAY01", "$$Q"] {
            let raw = format!("?f@@YAX{}H@Z", level.repeat(8000 / level.len()));
            let _ = demangle(&raw, Demangle::Full);
            let raw = format!("_Z1f{}i", level.repeat(8000 / level.len()));
            let _ = demangle(&raw, Demangle::Full);
        }
    }

    // Decorations as in Microsoft's "Format of a C decorated name".
    #[test]
    fn only_calling_conventions_of_x86_are_stripped() {
        for (raw, plain) in [
            ("_cdecl_function", "cdecl_function"),
            ("_stdcall_function@12", "stdcall_function"),
            ("@fastcall_function@8", "fastcall_function"),
            ("vectorcall_function@@16", "vectorcall_function"),
            ("?cpp@@YAXXZ", "?cpp@@YAXXZ"),
            ("plain", "plain"),
            ("_", "_"),
        ] {
            assert_eq!(undecorate_x86(raw, NameTable::Symbols), plain);
        }
    }
}
