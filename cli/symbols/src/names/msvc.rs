//! Names of MSVC's scheme, by the crate `undname`, which follows LLVM's demangler.

use std::borrow::Cow;

use undname::Flags;

/// The readable form of a name that begins with `?`.
pub(super) fn demangle(raw: &str, full: bool) -> Option<String> {
    let plain = Flags::NO_TAG_SPECIFIER | Flags::NO_CALLING_CONVENTION;
    if full {
        return undname::demangle(raw, plain | Flags::NO_ACCESS_SPECIFIER | Flags::NO_MEMBER_TYPE).ok();
    }
    let name = undname::demangle(raw, plain | Flags::NAME_ONLY).ok().filter(|name| name != raw)?;
    Some(as_in_records(raw, &name))
}

/// The name as the procedure records of a PDB have it, which give a function's code one name only.
fn as_in_records(raw: &str, name: &str) -> String {
    let mut name = Cow::Borrowed(name);
    // A conversion function is named after its type, not after its template's arguments.
    if raw.starts_with("??$?B")
        && let Some((before, behind)) = name.split_once("operator<")
        && let Some(end) = end_of_arguments(behind)
    {
        name = format!("{before}operator{}", &behind[end + 1..]).into();
    }
    // A thunk of a virtual function has no name of its own.
    if let Some(at) = ["`vtordisp{", "`vtordispex{", "`adjustor{"].iter().find_map(|mark| name.find(mark)) {
        name = name[..at].to_owned().into();
    }
    let name = name.replace(", ", ",");
    let name = name.replace("initializer for `", "initializer for '");
    let name = name.replace("destructor for `", "destructor for '");
    let mut shown = String::with_capacity(name.len());
    for part in name.split_inclusive('>') {
        // `a<b<c> >`, but not in `operator>>`.
        if part == ">" && shown.ends_with('>') && !shown.ends_with("operator>") {
            shown.push(' ');
        }
        shown.push_str(part);
    }
    shown
}

/// Where the arguments of a template end, whose `<` lies before `text`.
fn end_of_arguments(text: &str) -> Option<usize> {
    let mut depth = 1u32;
    text.bytes().position(|byte| {
        match byte {
            b'<' => depth += 1,
            b'>' => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}
