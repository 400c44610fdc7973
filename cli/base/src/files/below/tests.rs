use super::*;

/// A folder `out` beside a folder `home` with somebody's letter.
fn folders() -> (tempfile::TempDir, Below) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("home/docs")).unwrap();
    std::fs::write(folder.path().join("home/letter.txt"), "mine").unwrap();
    let out = Below::make(&folder.path().join("out")).unwrap();
    (folder, out)
}

#[test]
fn files_and_folders_are_made_and_renamed() {
    let (_folder, out) = folders();
    let (tmp, goal) = (out.join("_stk/tmp"), out.join("samples/0.parquet"));
    assert_eq!((tmp.kind().unwrap(), tmp.list().unwrap()), (None, Vec::<String>::new()));
    tmp.make_folder().unwrap();
    goal.parent().make_folder().unwrap();
    goal.parent().make_folder().unwrap();
    io::Write::write_all(&mut tmp.join("new").create_new().unwrap(), b"rows").unwrap();
    assert_eq!(tmp.join("new").create_new().unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(tmp.create_folder().unwrap_err().kind(), ErrorKind::AlreadyExists);
    tmp.join("new").rename(&goal).unwrap();
    assert_eq!(goal.kind().unwrap(), Some(Kind::File { len: 4 }));
    assert_eq!(goal.read(4).unwrap(), b"rows");
    assert_eq!(goal.read(3).unwrap_err().kind(), ErrorKind::FileTooLarge);
    goal.link_to(&tmp.join("second")).unwrap();
    assert_eq!(tmp.list().unwrap(), ["second"]);
    assert!(tmp.remove_empty_folder().is_err() && goal.parent().remove_file().is_err());
    goal.remove_file().unwrap();
    assert!(goal.parent().is_folder().unwrap());
    out.join("_stk").remove_all().unwrap();
    assert_eq!(out.list().unwrap(), ["samples"]);
}

#[test]
fn a_name_leads_to_no_folder_above() {
    let (_folder, out) = folders();
    for name in ["..", "../home", "a/../../home", "/"] {
        let at = out.join(name);
        assert!(at.kind().is_err() || at.kind().unwrap().is_none(), "{name}");
        assert!(at.join("letter.txt").open().is_err(), "{name}");
        assert!(at.join("x").create_new().is_err() && at.join("x").make_folder().is_err(), "{name}");
        assert!(at.remove_all().is_err(), "{name}");
    }
    assert!(out.path().parent().unwrap().join("home/letter.txt").exists());
}

#[cfg(unix)]
#[test]
fn a_link_is_an_error_that_names_it() {
    use std::os::unix::fs::symlink;
    let (folder, out) = folders();
    let home = folder.path().join("home");
    symlink(&home, out.join("folder").path()).unwrap();
    symlink(home.join("letter.txt"), out.join("file").path()).unwrap();
    symlink(home.join("none"), out.join("dangling").path()).unwrap();
    let plain = out.join("plain");
    plain.create_new().unwrap();
    let names_link = |result: io::Result<()>, link: &str| {
        let text = result.unwrap_err().to_string();
        let expected = format!("{}: is a link", out.join(link).path().display());
        assert!(text.starts_with(&expected), "{text}");
    };
    for (name, link) in
        [("folder", "folder"), ("file", "file"), ("dangling", "dangling"), ("folder/letter.txt", "folder")]
    {
        let at = out.join(name);
        names_link(at.kind().map(drop), link);
        names_link(at.open().map(drop), link);
        names_link(at.read(100).map(drop), link);
        names_link(at.list().map(drop), link);
        names_link(at.remove_file(), link);
        names_link(at.link_to(&out.join("second")), link);
        names_link(plain.rename(&at), link);
    }
    for name in ["folder/new", "folder/docs/new"] {
        let at = out.join(name);
        names_link(at.create_new().map(drop), "folder");
        names_link(at.create_folder(), "folder");
        names_link(at.make_folder(), "folder");
        names_link(at.remove_all(), "folder");
        names_link(plain.rename(&at), "folder");
        names_link(plain.link_to(&at), "folder");
    }
    assert!(plain.kind().unwrap().is_some());
    // Of a link itself, only the link is removed.
    out.join("sub").create_folder().unwrap();
    symlink(&home, out.join("sub/link").path()).unwrap();
    out.join("sub").remove_all().unwrap();
    assert_eq!(std::fs::read(home.join("letter.txt")).unwrap(), b"mine");
    assert!(home.join("docs").exists() && !home.join("new").exists());
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_not_opened() {
    let (_folder, out) = folders();
    let pipe = out.join("pipe");
    let name = std::ffi::CString::new(pipe.path().to_str().unwrap()).unwrap();
    #[expect(unsafe_code, reason = "std makes no pipes with names")]
    // SAFETY: the name ends with NUL and lives until the call returns.
    let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    assert_eq!((made, pipe.kind().unwrap()), (0, Some(Kind::Other)));
    for error in [pipe.open().map(drop), pipe.read(10).map(drop), pipe.link_to(&out.join("x"))] {
        assert_eq!(error.unwrap_err().to_string(), "is no regular file");
    }
}

#[cfg(unix)]
#[test]
fn the_folder_and_a_file_that_the_user_names_may_be_links() {
    use std::os::unix::fs::symlink;
    let (folder, out) = folders();
    symlink(out.path(), folder.path().join("to-out")).unwrap();
    Below::folder(&folder.path().join("to-out")).unwrap().join("x").create_new().unwrap();
    assert_eq!(out.list().unwrap(), ["x"]);
    symlink(folder.path().join("home/letter.txt"), folder.path().join("to-letter")).unwrap();
    let named = Below::named_file(&folder.path().join("to-letter")).unwrap();
    assert_eq!(named.read(100).unwrap(), b"mine");
    let dangling = folder.path().join("dangling");
    symlink("none", &dangling).unwrap();
    assert!(Below::named_file(&dangling).unwrap().kind().is_err());
}
