//! The release's files: their properties, and whether Windows trusts them.

use super::{Fact, Verdict};

const GROUP: &str = "files";

/// The result of WinVerifyTrust.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signature {
    /// Signed, and trusted here.
    Trusted,
    Unsigned,
    /// Signed, but refused with this error.
    Refused(u32),
    /// WinVerifyTrust could not be called.
    Unknown,
}

/// A file of the release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileFacts {
    /// File name, such as `agent.dll`.
    pub name: String,
    /// Full path; `None` if the file is not there.
    pub path: Option<String>,
    /// Whether recording needs it.
    pub needed: bool,
    /// SHA-256, hexadecimal.
    pub sha256: Option<String>,
    /// ZoneId of the file's zone mark (3 = from the internet); `None` without one.
    pub zone: Option<u32>,
    pub signature: Signature,
}

/// Judges the findings and returns facts with verdicts.
pub(crate) fn judge(files: &[FileFacts]) -> Vec<Fact> {
    files.iter().flat_map(judge_one).collect()
}

fn judge_one(file: &FileFacts) -> Vec<Fact> {
    let name = |what: &str| format!("{} {what}", file.name);
    let Some(path) = &file.path else {
        let missing = Fact::ok(GROUP, name("path"), serde_json::Value::Null);
        return match file.needed {
            true => vec![
                missing
                    .but(Verdict::Bad, "missing beside inject.exe: unpack the whole release into one folder"),
            ],
            false => vec![missing.but(
                Verdict::Note,
                "not beside inject.exe; recording programs of this architecture does without",
            )],
        };
    };
    let mut facts = vec![Fact::ok(GROUP, name("path"), path.as_str())];
    facts.push(match &file.sha256 {
        Some(hash) => Fact::ok(GROUP, name("sha256"), hash.as_str()),
        None => Fact::unknown(GROUP, name("sha256"), "the file cannot be read or hashed"),
    });
    let zone = Fact::ok(GROUP, name("zone"), file.zone);
    facts.push(zone.note_if(
        file.zone.is_some_and(|zone| zone >= 3),
        "marked as downloaded: SmartScreen and Smart App Control look at it more closely; remove the mark with Unblock-File",
    ));
    facts.push(match file.signature {
        Signature::Trusted => Fact::ok(GROUP, name("signature"), "trusted"),
        Signature::Unsigned => Fact::ok(GROUP, name("signature"), "none")
            .but(Verdict::Note, "unsigned: security software and Smart App Control may block it"),
        Signature::Refused(code) => Fact::ok(GROUP, name("signature"), format!("refused ({code:#010x})"))
            .but(Verdict::Bad, "signed, but Windows does not accept the signature: the file may be damaged"),
        Signature::Unknown => Fact::unknown(GROUP, name("signature"), "WinVerifyTrust is not available"),
    });
    facts
}

/// The ZoneId in the text of a `Zone.Identifier` stream.
pub(crate) fn zone_id(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.trim().strip_prefix("ZoneId=")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FileFacts {
        FileFacts {
            name: "agent.dll".to_owned(),
            path: Some("C:\\stk\\agent.dll".to_owned()),
            needed: true,
            sha256: Some("00".repeat(32)),
            zone: None,
            signature: Signature::Trusted,
        }
    }

    fn worst(file: FileFacts) -> Verdict {
        judge(&[file]).into_iter().map(|fact| fact.verdict).max().expect("facts")
    }

    #[test]
    fn a_signed_local_file_is_ok() {
        assert_eq!(worst(file()), Verdict::Ok);
    }

    #[test]
    fn each_fault_of_a_file_is_reported() {
        assert_eq!(worst(FileFacts { path: None, ..file() }), Verdict::Bad);
        assert_eq!(worst(FileFacts { path: None, needed: false, ..file() }), Verdict::Note);
        assert_eq!(worst(FileFacts { zone: Some(3), ..file() }), Verdict::Note);
        assert_eq!(worst(FileFacts { zone: Some(0), ..file() }), Verdict::Ok);
        assert_eq!(worst(FileFacts { sha256: None, ..file() }), Verdict::Unknown);
        assert_eq!(worst(FileFacts { signature: Signature::Unsigned, ..file() }), Verdict::Note);
        assert_eq!(worst(FileFacts { signature: Signature::Refused(0x8009_6010), ..file() }), Verdict::Bad);
    }

    #[test]
    fn the_zone_is_read_from_the_streams_text() {
        assert_eq!(zone_id("[ZoneTransfer]\r\nZoneId=3\r\nReferrerUrl=https://x\r\n"), Some(3));
        assert_eq!(zone_id("[ZoneTransfer]\r\n"), None);
        assert_eq!(zone_id("ZoneId=x"), None);
    }
}
