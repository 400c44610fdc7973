//! The other build of inject. Only an inject of a process's own kind can record it, and a release
//! holds two.

use object::pe::{IMAGE_FILE_MACHINE_AMD64, IMAGE_FILE_MACHINE_ARM64, IMAGE_FILE_MACHINE_I386};

/// File name of the inject beside this one that records processes of `target`; `None` if this one
/// does, or if none does. Both are `IMAGE_FILE_MACHINE_*`.
pub(crate) fn inject_for(own: u16, target: u16) -> Option<&'static str> {
    match (own, target) {
        (IMAGE_FILE_MACHINE_AMD64 | IMAGE_FILE_MACHINE_ARM64, IMAGE_FILE_MACHINE_I386) => {
            Some("inject32.exe")
        }
        (IMAGE_FILE_MACHINE_I386, IMAGE_FILE_MACHINE_AMD64 | IMAGE_FILE_MACHINE_ARM64) => Some("inject.exe"),
        _ => None,
    }
}

/// File names under which the agent of an inject built for `own` lies beside it, the usual one
/// first.
pub(crate) fn agent_names(own: u16) -> &'static [&'static str] {
    match own {
        IMAGE_FILE_MACHINE_I386 => &["agent32.dll", "agent.dll"],
        _ => &["agent.dll"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X64: u16 = 0x8664;
    const ARM64: u16 = 0xaa64;
    const X86: u16 = 0x14c;

    #[test]
    fn a_32_bit_process_is_for_inject32_and_others_for_inject() {
        assert_eq!(inject_for(X64, X86), Some("inject32.exe"));
        assert_eq!(inject_for(ARM64, X86), Some("inject32.exe"));
        assert_eq!(inject_for(X86, X64), Some("inject.exe"));
    }

    #[test]
    fn no_other_inject_is_named_if_this_one_fits_or_none_does() {
        for own in [X64, ARM64, X86] {
            assert_eq!(inject_for(own, own), None);
        }
        // Emulated x64 on ARM64 is refused by name.
        assert_eq!(inject_for(ARM64, X64), None);
        assert_eq!(inject_for(X64, 0x1c4), None);
    }

    #[test]
    fn each_inject_knows_its_agent() {
        assert_eq!(agent_names(X64), ["agent.dll"]);
        assert_eq!(agent_names(X86)[0], "agent32.dll");
    }
}
