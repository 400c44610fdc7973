use super::*;

const MEDIUM: u32 = 0x2000;
const HIGH: u32 = 0x3000;
const SYSTEM: u32 = 0x4000;

#[test]
fn only_the_same_user_with_the_same_rights_is_a_peer() {
    let rows = [
        (Some(true), MEDIUM, MEDIUM, IntegrityLevel::Peer),
        (Some(true), HIGH, MEDIUM, IntegrityLevel::Peer),
        // The same user without elevation, and a sandboxed process.
        (Some(true), MEDIUM, HIGH, IntegrityLevel::Below),
        (Some(true), 0x1000, MEDIUM, IntegrityLevel::Below),
        // Another user's service at the level of an administrator's inject, or above.
        (Some(false), HIGH, HIGH, IntegrityLevel::Below),
        (Some(false), SYSTEM, HIGH, IntegrityLevel::Below),
        (None, HIGH, HIGH, IntegrityLevel::Below),
        (Some(true), 0, HIGH, IntegrityLevel::Below),
        (Some(true), 0, 0, IntegrityLevel::Below),
    ];
    for (same_user, integrity, own, expected) in rows {
        assert_eq!(rank(same_user, integrity, own), expected, "{same_user:?} {integrity:#x} {own:#x}");
    }
}

/// A file with given properties. It records whether the signature was checked.
#[derive(Default)]
struct PlantedFile {
    file: bool,
    folder: bool,
    own: bool,
    signed: bool,
    asked_signature: bool,
}

impl Evidence for PlantedFile {
    fn file_is_the_systems(&mut self) -> bool {
        self.file
    }
    fn folder_is_the_systems(&mut self) -> bool {
        self.folder
    }
    fn file_is_own(&mut self) -> bool {
        self.own
    }
    fn maker_signed(&mut self) -> bool {
        self.asked_signature = true;
        self.signed
    }
}

#[test]
fn a_library_that_the_recorded_user_can_write_is_not_loaded_by_an_inject_above_it() {
    for (beside, named) in [(true, false), (false, false), (false, true)] {
        assert_eq!(
            permit(IntegrityLevel::Below, beside, named, &mut PlantedFile::default()),
            None,
            "{beside} {named}"
        );
    }
    // An administrators' folder does not make a file trusted that another user may write.
    let mut planted = PlantedFile { folder: true, ..PlantedFile::default() };
    assert_eq!(permit(IntegrityLevel::Below, true, false, &mut planted), None);
    // A file that only inject's user can write is trusted only in a folder that this user has
    // named.
    let mut planted = PlantedFile { own: true, ..PlantedFile::default() };
    assert_eq!(permit(IntegrityLevel::Below, true, false, &mut planted), None);
}

#[test]
fn writers_and_signer_decide_where_the_dlls_of_a_library_may_come_from() {
    let only = |own_folder| Some(LoadPolicy { own_folder });
    assert_eq!(permit(IntegrityLevel::Peer, true, false, &mut PlantedFile::default()), only(true));
    assert_eq!(permit(IntegrityLevel::Peer, false, true, &mut PlantedFile::default()), only(false));
    let both = || PlantedFile { file: true, folder: true, ..PlantedFile::default() };
    assert_eq!(permit(IntegrityLevel::Below, true, false, &mut both()), only(true));
    assert_eq!(permit(IntegrityLevel::Below, false, false, &mut both()), only(false));
    let mut open_folder = PlantedFile { file: true, ..PlantedFile::default() };
    assert_eq!(permit(IntegrityLevel::Below, true, false, &mut open_folder), only(false));
    assert!(!open_folder.asked_signature);
    // A signed library in a folder that every user may write: a DLL planted beside it must not be
    // loaded.
    let mut signed = PlantedFile { signed: true, ..PlantedFile::default() };
    assert_eq!(permit(IntegrityLevel::Below, true, false, &mut signed), only(false));
    let mut own = PlantedFile { own: true, ..PlantedFile::default() };
    assert_eq!(permit(IntegrityLevel::Below, false, true, &mut own), only(false));
}

#[test]
fn shares_devices_and_streams_are_no_plain_paths() {
    let plain = [
        (r"C:\Program Files\dotnet\shared\mscordaccore.dll", 'C'),
        (r"z:\work\münchen\mscordaccore.dll", 'Z'),
        (r"C:/app/mscordaccore.dll", 'C'),
        (r"\\?\D:\long\mscordaccore.dll", 'D'),
        (r"C:\console\com10\lpt\nullable\coreclr.dll", 'C'),
    ];
    for (path, letter) in plain {
        assert_eq!(plain_drive(path), Some(letter), "{path}");
    }
    let others = [
        r"\\attacker\share\mscordaccore.dll",
        r"//attacker/share/mscordaccore.dll",
        r"\\?\UNC\attacker\share\mscordaccore.dll",
        r"\\.\pipe\mscordaccore.dll",
        r"\\.\C:\mscordaccore.dll",
        r"\\?\GLOBALROOT\Device\Mup\attacker\share\x.dll",
        r"\\?\Volume{b75e2c83-0000-0000-0000-602f00000000}\x.dll",
        r"\??\C:\x.dll",
        r"C:mscordaccore.dll",
        r"\mscordaccore.dll",
        "mscordaccore.dll",
        r"C:\app\..\..\x\mscordaccore.dll",
        r"C:\app\x.txt:mscordaccore.dll",
        r"C:\app\NUL",
        r"C:\app\con.dll",
        r"C:\COM1\mscordaccore.dll",
        r"C:\lpt9 .x\mscordaccore.dll",
        "C:\\app\0\\mscordaccore.dll",
        "",
    ];
    for path in others {
        assert_eq!(plain_drive(path), None, "{path}");
    }
}

#[test]
fn links_are_followed_only_if_their_maker_has_inject_s_rights() {
    let own = Some("S-1-5-21-1-2-3-1001");
    assert!(follows(Some("O:BAG:SYD:(A;;FA;;;WD)"), own));
    assert!(follows(Some("O:S-1-5-21-1-2-3-1001D:(A;;FA;;;WD)"), own));
    assert!(!follows(Some("O:S-1-5-21-1-2-3-1002D:(A;;FA;;;BA)"), own));
    assert!(!follows(Some("O:S-1-5-21-1-2-3-1001D:(A;;FA;;;BA)"), None));
    assert!(!follows(Some("D:(A;;FA;;;BA)"), own));
    assert!(!follows(None, own));
}

#[test]
fn force_empties_plain_files_with_one_name_and_nothing_else() {
    let file = ExistingFile { regular: true, link: false, names: 1 };
    assert_eq!(replaceable(file), Ok(()));
    let refused = [
        (ExistingFile { link: true, ..file }, "link"),
        (ExistingFile { link: true, regular: false, ..file }, "link"),
        (ExistingFile { regular: false, ..file }, "no file"),
        (ExistingFile { names: 2, ..file }, "hard link"),
    ];
    for (existing, why) in refused {
        assert!(replaceable(existing).is_err_and(|error| error.to_string().contains(why)), "{existing:?}");
    }
}
