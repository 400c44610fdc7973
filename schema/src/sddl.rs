//! Security descriptors in their string form (SDDL): who may write a file or folder, and whether it
//! has a low mandatory label. One judgement for all programs.
//!
//! A part that is not understood counts as a user who may write.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// Owners and writers that are administrators or the system: Administrators, SYSTEM,
/// TrustedInstaller.
const TRUSTED: [&str; 5] = [
    "BA",
    "S-1-5-32-544",
    "SY",
    "S-1-5-18",
    "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",
];
/// CREATOR OWNER and OWNER RIGHTS: placeholders for the owner, who is checked separately.
const OWNERS: [&str; 4] = ["CO", "S-1-3-0", "OW", "S-1-3-4"];

/// Rights to change a file or folder, or to grant such rights: FILE_WRITE_DATA, FILE_APPEND_DATA,
/// FILE_WRITE_EA, FILE_DELETE_CHILD, FILE_WRITE_ATTRIBUTES, DELETE, WRITE_DAC, WRITE_OWNER,
/// GENERIC_ALL, GENERIC_WRITE (Microsoft, "File access rights constants", "ACCESS_MASK").
const WRITING: u32 =
    0x2 | 0x4 | 0x10 | 0x40 | 0x100 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x1000_0000 | 0x4000_0000;

/// Somebody who may write an object and is not trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherWriter<'a> {
    /// The owner, who can change the access list at any time; empty if none is given.
    Owner(&'a str),
    /// Everybody: there is no access list.
    Everybody,
    /// A user or group of the access list.
    Listed(&'a str),
    /// An entry of the access list is not understood.
    Unknown,
}

impl fmt::Display for OtherWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OtherWriter::Owner("") => f.write_str("its owner is unknown"),
            OtherWriter::Owner(owner) => write!(f, "it belongs to another user ({owner})"),
            OtherWriter::Everybody => f.write_str("everybody may write there"),
            OtherWriter::Listed(user) => write!(f, "other users may write there ({user})"),
            OtherWriter::Unknown => f.write_str("who may write there is unknown"),
        }
    }
}

/// The descriptor of a file that only this user, administrators and the system may open; nothing is
/// inherited from its folder.
pub fn private(user: &str) -> String {
    format!("D:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FA;;;{user})")
}

/// Whether only administrators, the system and this user (by SID) own and may write the object with
/// this descriptor.
pub fn only_trusted_write(sddl: &str, user: Option<&str>) -> bool {
    other_writer(sddl, user).is_none()
}

/// The first one beside administrators, the system and this user (by SID) who owns or may write the
/// object with this descriptor.
///
/// Entries that only new files in a folder inherit count too. Entries that deny access are not
/// relied on.
pub fn other_writer<'a>(sddl: &'a str, user: Option<&str>) -> Option<OtherWriter<'a>> {
    if !is_owned(sddl, user) {
        return Some(OtherWriter::Owner(part(sddl, "O:").unwrap_or_default()));
    }
    match part(sddl, "D:").filter(|dacl| !dacl.contains("NO_ACCESS_CONTROL")) {
        Some(dacl) => aces(dacl).find_map(|ace| ace.other_writer(user)),
        None => Some(OtherWriter::Everybody),
    }
}

/// Whether administrators, the system or this user own the object with this descriptor.
pub fn is_owned(sddl: &str, user: Option<&str>) -> bool {
    part(sddl, "O:").is_some_and(|owner| is_trusted(owner, user))
}

fn is_trusted(sid: &str, user: Option<&str>) -> bool {
    // The built-in Administrator, whose SID ends in 500, is written as LA.
    let is = |user: &str| sid == user || sid == "LA" && user.ends_with("-500");
    TRUSTED.contains(&sid) || user.is_some_and(is)
}

/// Whether it has a mandatory label of low or untrusted integrity.
pub fn has_low_label(sddl: &str) -> bool {
    const LOW: [&str; 3] = ["LW", "S-1-16-4096", "S-1-16-0"];
    part(sddl, "S:").is_some_and(|sacl| {
        aces(sacl).any(|ace| ace.kind == "ML" && !ace.flags.contains("IO") && LOW.contains(&ace.trustee))
    })
}

/// The text after `O:`, `G:`, `D:` or `S:`, up to the next of them outside parentheses.
fn part<'a>(sddl: &'a str, key: &str) -> Option<&'a str> {
    let mut depth = 0;
    let mut from = None;
    for (at, character) in sddl.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            // A key is one letter before a colon. SIDs contain no colon.
            'O' | 'G' | 'D' | 'S' if depth == 0 && sddl[at + 1..].starts_with(':') => {
                if let Some(from) = from {
                    return Some(&sddl[from..at]);
                }
                if sddl[at..].starts_with(key) {
                    from = Some(at + key.len());
                }
            }
            _ => {}
        }
    }
    from.map(|from| &sddl[from..])
}

struct Ace<'a> {
    kind: &'a str,
    flags: &'a str,
    rights: &'a str,
    trustee: &'a str,
}

impl<'a> Ace<'a> {
    /// The user who may write by this entry, unless that one is trusted.
    fn other_writer(&self, user: Option<&str>) -> Option<OtherWriter<'a>> {
        match self.kind {
            "D" | "OD" | "XD" => None,
            _ if is_trusted(self.trustee, user) || OWNERS.contains(&self.trustee) => None,
            "A" | "OA" | "XA" => match mask(self.rights) {
                Some(mask) if mask & WRITING == 0 => None,
                Some(_) => Some(OtherWriter::Listed(self.trustee)),
                None => Some(OtherWriter::Unknown),
            },
            _ => Some(OtherWriter::Unknown),
        }
    }
}

/// The entries `(kind;flags;rights;object;inherited object;trustee…)` of a list. A condition
/// behind the trustee has parentheses of its own.
fn aces(list: &str) -> impl Iterator<Item = Ace<'_>> {
    let mut depth = 0;
    let edges = list.split(move |character| {
        let before = depth;
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (before, depth) == (0, 1) || (before, depth) == (1, 0)
    });
    edges.skip(1).step_by(2).map(|text| {
        let mut fields = text.split(';');
        let mut next = || fields.next().unwrap_or_default();
        let (kind, flags, rights) = (next(), next(), next());
        let (_object, _inherited) = (next(), next());
        Ace { kind, flags, rights, trustee: next() }
    })
}

/// Access rights as bits; `None` if they are not understood.
fn mask(rights: &str) -> Option<u32> {
    if let Some(number) = rights.strip_prefix("0x") {
        return u32::from_str_radix(number, 16).ok();
    }
    if !rights.is_ascii() || !rights.len().is_multiple_of(2) {
        return None;
    }
    let mut mask = 0;
    for at in (0..rights.len()).step_by(2) {
        mask |= match &rights[at..at + 2] {
            "FR" => 0x12_0089,
            "FX" => 0x12_00a0,
            "FW" => 0x12_0116,
            "FA" => 0x1f_01ff,
            "GA" => 0x1000_0000,
            "GX" => 0x2000_0000,
            "GW" => 0x4000_0000,
            "GR" => 0x8000_0000,
            "SD" => 0x1_0000,
            "RC" => 0x2_0000,
            "WD" => 0x4_0000,
            "WO" => 0x8_0000,
            "CC" => 0x1,
            "DC" => 0x2,
            "LC" => 0x4,
            "SW" => 0x8,
            "RP" => 0x10,
            "WP" => 0x20,
            "DT" => 0x40,
            "LO" => 0x80,
            "CR" => 0x100,
            _ => return None,
        };
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use alloc::vec::Vec;

    const ME: &str = "S-1-5-21-1-2-3-1001";

    /// Modelled on the access list of C:\Program Files on Windows 10.
    const PROGRAM_FILES: &str = "O:S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464\
        G:S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464D:PAI(A;OICIIO;GA;;;CO)(A;OICIIO;GA;;;SY)(A;;0x1301bf;;;SY)\
        (A;OICIIO;GA;;;BA)(A;;0x1301bf;;;BA)(A;OICIIO;GXGR;;;BU)(A;;0x1200a9;;;BU)\
        (A;CIIO;GA;;;S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464)\
        (A;;FA;;;S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464)(A;;0x1200a9;;;AC)(A;OICIIO;GXGR;;;AC)\
        (A;;0x1200a9;;;S-1-15-2-2)(A;OICIIO;GXGR;;;S-1-15-2-2)";

    /// Its parts by Microsoft's "Security Descriptor String Format": P protected from inheritance,
    /// A allow, FA all rights to a file, SY LocalSystem, BA built-in administrators.
    #[test]
    fn a_private_file_is_for_its_user_administrators_and_the_system_alone() {
        let user = "S-1-5-21-1-2-3-1001";
        let made = private(user);
        let dacl = made.strip_prefix("D:P").expect("protected");
        let entries: Vec<&str> = dacl.trim_matches(['(', ')']).split(")(").collect();
        assert_eq!(entries, ["A;;FA;;;SY", "A;;FA;;;BA", "A;;FA;;;S-1-5-21-1-2-3-1001"]);
        let owned = format!("O:{user}G:{user}{made}");
        assert!(only_trusted_write(&owned, Some(user)));
        assert!(!only_trusted_write(&owned, Some("S-1-5-21-1-2-3-1002")));
    }

    #[test]
    fn folders_that_only_administrators_write_are_recognised() {
        let rows = [
            (PROGRAM_FILES, true),
            ("O:BAG:SYD:P(A;;FA;;;BA)(A;;FA;;;SY)(A;;FRFX;;;WD)", true),
            // A user's own folder: its owner can change the list at any time.
            ("O:S-1-5-21-1-2-3-1001G:SYD:P(A;;FA;;;BA)(A;;FA;;;SY)", false),
            // C:\ProgramData lets users make files.
            ("O:SYG:SYD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1200a9;;;BU)(A;CI;DCLCRPCR;;;BU)", false),
            ("O:BAG:SYD:(A;;FA;;;WD)", false),
            ("O:BAG:SYD:(A;;0x40000;;;AU)", false), // WRITE_DAC
            ("O:BAG:SYD:(A;;SD;;;AU)", false),
            ("O:BAG:SYD:(D;;FA;;;AU)(A;;FA;;;BA)", true),
            ("O:BAG:SYD:(XA;;FA;;;AU;(Member_of {SID(BA)}))", false),
            ("O:BAG:SYD:(XA;;0x1200a9;;;AU;(Member_of {SID(BA)}))(A;;FA;;;BA)", true),
            ("O:BAG:SYD:(A;;??;;;AU)", false),
            ("O:BAG:SYD:(ZA;;0x1200a9;;;AU)", false),
            // New files in the folder inherit it.
            ("O:BAG:SYD:(A;OICIIO;FA;;;AU)", false),
            ("O:BAG:SYD:NO_ACCESS_CONTROL", false),
            ("O:BAG:SY", false),
            ("D:(A;;FA;;;BA)", false),
            ("", false),
        ];
        for (sddl, expected) in rows {
            assert_eq!(only_trusted_write(sddl, None), expected, "{sddl}");
        }
    }

    #[test]
    fn one_more_user_may_own_and_write_but_nobody_else() {
        let user = Some("S-1-5-21-1-2-3-1001");
        let own = "O:S-1-5-21-1-2-3-1001G:SYD:(A;;FA;;;S-1-5-21-1-2-3-1001)(A;;FA;;;SY)(A;;0x1200a9;;;BU)";
        assert!(only_trusted_write(own, user) && !only_trusted_write(own, None));
        assert!(!only_trusted_write(own, Some("S-1-5-21-1-2-3-1002")));
        // C:\symbols, which inherits from C:\ that any user may write.
        assert!(!only_trusted_write("O:S-1-5-21-1-2-3-1001D:(A;ID;FA;;;BA)(A;ID;0x1301bf;;;AU)", user));
        let administrator = Some("S-1-5-21-1-2-3-500");
        assert!(only_trusted_write("O:LAD:(A;;FA;;;LA)", administrator));
        assert!(!only_trusted_write("O:LAD:(A;;FA;;;LA)", user));
    }

    /// The rights of a folder made in C:\ on a stock system: Authenticated Users may modify.
    #[test]
    fn a_folder_in_the_root_of_a_stock_system_has_other_writers() {
        let sddl = "O:BAG:BAD:(A;OICI;0x1f01ff;;;BA)(A;OICI;0x1301bf;;;S-1-5-11)";
        assert_eq!(other_writer(sddl, Some(ME)), Some(OtherWriter::Listed("S-1-5-11")));
    }

    #[test]
    fn each_right_to_change_an_object_counts() {
        let writer = |right: u32| format!("O:{ME}D:(A;;0x{right:x};;;WD)");
        for right in [0x2, 0x4, 0x10, 0x40, 0x100, 0x1_0000, 0x4_0000, 0x8_0000, 0x1000_0000, 0x4000_0000] {
            assert!(!only_trusted_write(&writer(right), Some(ME)), "{right:x}");
        }
        // Read and execute.
        assert!(only_trusted_write(&writer(0x12_00a9), Some(ME)));
    }

    #[test]
    fn the_reason_names_the_other_writer() {
        let reason = |sddl| other_writer(sddl, Some(ME)).expect("somebody").to_string();
        assert_eq!(reason("O:S-1-5-21-1-2-3-1002D:"), "it belongs to another user (S-1-5-21-1-2-3-1002)");
        assert_eq!(reason("O:S-1-5-21-1-2-3-1001"), "everybody may write there");
        assert_eq!(reason("O:BAD:(A;;FA;;;AU)"), "other users may write there (AU)");
        assert_eq!(reason("O:BAD:(A;;??;;;AU)"), "who may write there is unknown");
        assert_eq!(reason("D:"), "its owner is unknown");
    }

    #[test]
    fn a_low_label_is_found_among_the_audit_entries() {
        assert!(has_low_label("O:BAD:(A;;FA;;;BA)S:(ML;;NW;;;LW)"));
        assert!(has_low_label("O:BAD:(A;;FA;;;BA)S:AI(AU;SA;FA;;;WD)(ML;OICI;NW;;;S-1-16-4096)"));
        assert!(!has_low_label("O:BAD:(A;;FA;;;BA)S:(ML;;NW;;;ME)"));
        assert!(!has_low_label("O:BAD:(A;;FA;;;BA)"));
    }
}
