//! Finds what may have blocked agent.dll: programs that are known to block foreign DLLs, security
//! software by its own DLLs in the process, and entries of Windows' event logs about a blocked DLL.

/// DLLs of programs that may block other DLLs: the beginning of the name in lower case, and the
/// program.
const KNOWN: [(&str, &str); 15] = [
    ("mozglue.dll", "Firefox's DLL blocklist ends threads that others start in it"),
    ("chrome_elf.dll", "Chrome's protection against third-party DLLs"),
    ("msedge_elf.dll", "Edge's protection against third-party DLLs"),
    ("umppc", "CrowdStrike Falcon"),
    ("inprocessclient", "SentinelOne"),
    ("hmpalert", "Sophos (HitmanPro.Alert)"),
    ("atcuf", "Bitdefender"),
    ("bdhkm", "Bitdefender"),
    ("aswhook", "Avast or AVG"),
    ("cyinjct", "Palo Alto Cortex XDR"),
    ("cyvera", "Palo Alto Cortex XDR"),
    ("ctiuser", "VMware Carbon Black"),
    ("mfehcinj", "Trellix (McAfee)"),
    ("tmmon", "Trend Micro"),
    ("easyhook", "a program that uses EasyHook"),
];

/// The programs whose DLLs are among a process's modules (names from their export directories),
/// each once.
pub(crate) fn known<'a>(modules: impl Iterator<Item = &'a str>) -> Vec<&'static str> {
    let mut found = Vec::new();
    for name in modules {
        let name = name.to_ascii_lowercase();
        for &(begin, whose) in &KNOWN {
            if name.starts_with(begin) && !found.contains(&whose) {
                found.push(whose);
            }
        }
    }
    found
}

/// An event log that reports blocked DLLs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub channel: &'static str,
    /// The ids of events about a blocked file.
    pub ids: &'static [u32],
    /// The component that writes it, for messages.
    pub source: &'static str,
}

/// The logs, the most frequent cause first.
pub(crate) const LOGS: [Log; 3] = [
    Log {
        channel: "Microsoft-Windows-CodeIntegrity/Operational",
        ids: &[3033, 3077],
        source: "Code Integrity (Smart App Control or App Control for Business)",
    },
    Log {
        channel: "Microsoft-Windows-Windows Defender/Operational",
        ids: &[1116, 1117, 1121],
        source: "Microsoft Defender",
    },
    Log { channel: "Microsoft-Windows-AppLocker/EXE and DLL", ids: &[8004], source: "AppLocker" },
];

impl Log {
    /// An XPath query for its entries of the last `seconds`.
    pub(crate) fn query(&self, seconds: u32) -> String {
        let ids: Vec<String> = self.ids.iter().map(|id| format!("EventID={id}")).collect();
        let (ids, ms) = (ids.join(" or "), u64::from(seconds) * 1000);
        format!("*[System[({ids}) and TimeCreated[timediff(@SystemTime) <= {ms}]]]")
    }
}

/// The id of an event (as XML) that names `file` (its name without a path); `None` for an event
/// about something else.
pub(crate) fn event_about(xml: &str, file: &str) -> Option<u32> {
    let named = xml.to_lowercase().contains(&file.to_lowercase());
    let (_, rest) = xml.split_once("<EventID")?;
    let (id, _) = rest.split_once('>')?.1.split_once('<')?;
    id.parse().ok().filter(|_| named)
}

/// Whether a program lies on none of the volumes that have a letter here, as those of containers
/// do. `image` is its NT path, `drives` are the devices behind the letters.
pub(crate) fn is_elsewhere(image: &str, drives: &[String]) -> bool {
    // Paths of shares name a redirector, and every machine sees the same files there.
    const REDIRECTORS: [&str; 2] = [r"\Device\Mup\", r"\Device\LanmanRedirector\"];
    let is_below = |folder: &str| {
        let begins = image.get(..folder.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(folder));
        begins && (folder.ends_with('\\') || image[folder.len()..].starts_with('\\'))
    };
    image.starts_with(r"\Device\")
        && !drives.is_empty()
        && !REDIRECTORS.into_iter().any(is_below)
        && !drives.iter().any(|drive| is_below(drive))
}

/// What to do about a program in a container.
pub(crate) const IN_CONTAINER: &str = "the program is on a volume that no drive here has, as in a container, where agent.dll's path names \
                                       another file or none: copy stk into the container and record there";

/// The logs with their ids, for the message if no cause was found. `denied`: some are for
/// administrators only.
pub(crate) fn where_to_look(denied: bool) -> String {
    let logs: Vec<String> = LOGS
        .iter()
        .map(|log| {
            let ids: Vec<String> = log.ids.iter().map(u32::to_string).collect();
            format!("{} ({})", log.channel, ids.join(", "))
        })
        .collect();
    let who = if denied { " (run inject as administrator to see why)" } else { "" };
    logs.join("; ") + who
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blockers_are_known_by_their_dlls_in_the_process() {
        let modules = ["firefox.exe", "ntdll.dll", "MOZGLUE.dll", "umppc16606.dll", "umppca.dll"];
        let found = known(modules.into_iter());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("Firefox") && found[1].contains("CrowdStrike"), "{found:?}");
        assert!(known(["app.exe", "ntdll.dll", "kernel32.dll"].into_iter()).is_empty());
    }

    #[test]
    fn a_program_in_a_container_lies_on_no_drive_of_this_machine() {
        let drives = [r"\Device\HarddiskVolume3".to_owned(), r"\Device\HarddiskVolume1".to_owned()];
        for (image, elsewhere) in [
            (r"\Device\HarddiskVolume3\a\app.exe", false),
            (r"\device\harddiskvolume1\app.exe", false),
            (r"\Device\Mup\server\share\app.exe", false),
            (r"\Device\HarddiskVolume30\app.exe", true),
            (r"\Device\VhdHardDisk{11111111-2222-3333-4444-555555555555}\app.exe", true),
            // Wine's, and one that is not known.
            (r"\??\C:\app.exe", false),
            ("", false),
        ] {
            assert_eq!(is_elsewhere(image, &drives), elsewhere, "{image}");
            assert!(!is_elsewhere(image, &[]), "{image}");
        }
    }

    #[test]
    fn logs_for_administrators_are_said_to_be() {
        assert!(where_to_look(true).ends_with("(run inject as administrator to see why)"));
        assert!(!where_to_look(false).contains("administrator"));
    }

    #[test]
    fn a_query_asks_for_the_ids_and_the_time() {
        assert_eq!(
            LOGS[2].query(60),
            "*[System[(EventID=8004) and TimeCreated[timediff(@SystemTime) <= 60000]]]"
        );
        assert!(LOGS[0].query(1).contains("EventID=3033 or EventID=3077"));
    }

    #[test]
    fn only_events_about_the_file_count() {
        let xml = "<Event xmlns='http://schemas.microsoft.com/win/2004/08/events/event'><System><Provider Name='Microsoft-Windows-\
                   CodeIntegrity'/><EventID>3077</EventID><Version>5</Version></System><EventData><Data Name='File Name'>\
                   \\Device\\HarddiskVolume3\\tools\\Agent.dll</Data></EventData></Event>";
        assert_eq!(event_about(xml, "agent.dll"), Some(3077));
        assert_eq!(event_about(xml, "other.dll"), None);
        let qualified = "<EventID Qualifiers='0'>1121</EventID><Data>C:\\agent.dll</Data>";
        assert_eq!(event_about(qualified, "agent.dll"), Some(1121));
        assert_eq!(event_about("no event about agent.dll", "agent.dll"), None);
    }
}
