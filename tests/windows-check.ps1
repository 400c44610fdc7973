# The first hour of stk on a real Windows: what is most likely to fail comes first, every criterion is a number, and everything that a
# report needs ends in one zip of at most 5 MB. For Windows PowerShell 5.1 or later; no administrator rights. This file is ASCII.
#
#   Get-ChildItem | Unblock-File                  in the folder of a release: a download has a mark that keeps programs from starting
#   powershell -ExecutionPolicy Bypass -File windows-check.ps1 [-Bin FOLDER] [-Programs FOLDER] [-Busy FOLDER] [-Quick] [-Only churn,exit]
#
#   -Bin       stk.exe, inject.exe, agent.dll (inject32.exe, agent32.dll); default: this script's folder, as in a release, else target\release
#   -Programs  first_hour.exe (first_hour32.exe for the 32-bit part); default: this script's folder, else target\examples\first_hour
#   -Busy      busy.exe, its plug-ins and PDBs; default: target\examples\busy, else target\examples\busy-msvc
#   -Quick     a tenth of the times and counts, softer limits (a tenth of the time has three times the noise), and no part begins after ten
#              minutes
#   -Only      only these parts: doctor environment churn exit unload triggers flight rotate children marks top moveto launch lifecycle x86
#              saturation idle rates peblock dumps pulse busy walks
#
# It ends with a verdict of ten lines. Exit code: 0, or 1 if a criterion failed.
#
# Programs that it needs, all of them in this repository:
#   first_hour.exe    tests\programs\first_hour.c      cl /O2 first_hour.c, or x86_64-w64-mingw32-gcc -O2 -s -o first_hour.exe first_hour.c
#   first_hour32.exe  the same, for x86                cl /O2 (x86 tools), or i686-w64-mingw32-gcc -O2 -s -o first_hour32.exe first_hour.c
#   busy.exe          examples\busy                    CMakeLists.txt, or copied from target/examples/busy of a Linux build
#   csc.exe           of the .NET Framework, which Windows has; the launch part compiles a program with it
#
# The project is developed without a Windows machine: this script asks one. Please attach the zip that it names to a report.
# The zip holds traces (stacks and paths of the programs above only), doctor's report, and extracts of event logs about these programs.
param(
  [string]$Bin = "",
  [string]$Programs = "",
  [string]$Busy = "",
  [switch]$Quick,
  [string[]]$Only = @()
)
$ErrorActionPreference = "Stop"
$released = Test-Path "$PSScriptRoot\inject.exe"
if ($Bin -eq "") { $Bin = if ($released) { $PSScriptRoot } else { "$PSScriptRoot\..\target\release" } }
if ($Programs -eq "") { $Programs = if ($released) { $PSScriptRoot } else { "$PSScriptRoot\..\target\examples\first_hour" } }
$Bin = (Resolve-Path $Bin).Path
$Programs = (Resolve-Path $Programs).Path
if ($Busy -eq "") {
  $Busy = @("busy", "busy-msvc") | ForEach-Object { "$PSScriptRoot\..\target\examples\$_" } |
    Where-Object { Test-Path "$_\busy.exe" } | Select-Object -First 1
}
if ($Busy) { $Busy = (Resolve-Path $Busy).Path }
$Only = @($Only | ForEach-Object { $_ -split "," } | Where-Object { $_ })

$work = Join-Path ([IO.Path]::GetTempPath()) "stk-windows-check-$PID"
New-Item -ItemType Directory $work | Out-Null
$began = Get-Date
$scale = 1.0
# What a criterion of speed may be wrong by.
$soft = 1.0
if ($Quick) { $scale = 0.1; $soft = 2.0 }
$script:results = @()
$script:spans = @()
$script:exceptions = @()
$umlaut = [char]0xE4
$sharpS = [char]0xDF
$oUmlaut = [char]0xF6

# ---- helpers

# One criterion: what, whether it holds, the number it was decided by.
function Check([string]$what, [bool]$ok, $number = $null) {
  $script:results += [pscustomobject]@{ part = $script:part; what = $what; ok = $ok; number = $number }
  $mark = "ok     "
  if (-not $ok) { $mark = "FAILED " }
  Write-Host ("{0} {1}: {2}  [{3}]" -f $mark, $script:part, $what, $number)
}
# A number without a criterion, for the report.
function Note([string]$what, $number) {
  $script:results += [pscustomobject]@{ part = $script:part; what = $what; ok = $null; number = $number }
  Write-Host ("note    {0}: {1}  [{2}]" -f $script:part, $what, $number)
}
function Quoted([string[]]$arguments) {
  @($arguments | ForEach-Object { if ($_ -match "\s" -or $_ -eq "") { "`"$_`"" } else { $_ } })
}
# Starts a program with its output in files of the results.
function Start-Logged([string]$program, [string[]]$arguments, [string]$log, [string]$folder = $work) {
  $process = Start-Process $program -ArgumentList (Quoted $arguments) -WorkingDirectory $folder -NoNewWindow -PassThru `
    -RedirectStandardOutput "$work\$log.out" -RedirectStandardError "$work\$log.err"
  $null = $process.Handle # else the exit code is lost
  $process | Add-Member -NotePropertyName Log -NotePropertyValue $log
  $process
}
# The exit code of a program that has ended. One that an exception ended has a status such as 0xC0000005, as a negative number; the part fails.
function Ended($process) {
  $process.WaitForExit()
  if ($process.ExitCode -lt -65536) { $script:exceptions += "{0}: 0x{1:X8}" -f $process.Log, $process.ExitCode }
  $process.ExitCode
}
# Waits for the end of a program; its exit code, or $null if it had to be killed.
function Wait-Logged($process, [int]$seconds) {
  if (-not $process.WaitForExit($seconds * 1000)) {
    $process.Kill()
    $process.WaitForExit()
    return $null
  }
  Ended $process
}
function Invoke-Logged([string]$program, [string[]]$arguments, [string]$log, [int]$seconds = 120) {
  Wait-Logged (Start-Logged $program $arguments $log) $seconds
}
# Starts first_hour.exe (or another program that prints "ready") and waits until it is ready.
function Start-Ready([string]$program, [string[]]$arguments, [string]$log) {
  $process = Start-Logged $program $arguments $log (Split-Path $program)
  for ($i = 0; $i -lt 200 -and -not $process.HasExited; $i++) {
    if (Select-String -Quiet "^ready" "$work\$log.out") { break }
    Start-Sleep -Milliseconds 50
  }
  $process
}
# A value that first_hour printed; $null without one.
function Said([string]$log, [string]$key) {
  $match = Select-String "^$key (\d+)" "$work\$log.out" | Select-Object -First 1
  if ($match) { [double]$match.Matches[0].Groups[1].Value } else { $null }
}
function Was-Right([string]$log) { [bool](Select-String -Quiet "^ok" "$work\$log.out") }
# What stk info says of a trace; $null if it cannot be read.
function Info([string]$trace) {
  if (-not (Test-Path $trace)) { return $null }
  $log = [IO.Path]::GetFileNameWithoutExtension($trace) + "-info"
  $code = Invoke-Logged "$Bin\stk.exe" @("info", "--json", $trace) $log
  if ($code -ne 0) { return $null }
  (Get-Content -Raw -Encoding UTF8 "$work\$log.out" | ConvertFrom-Json).traces[0]
}
function Total-Drops($info) {
  $sum = 0.0
  if ($info -and $info.drops) { foreach ($one in $info.drops.PSObject.Properties) { $sum += [double]$one.Value } }
  $sum
}
# A number of the trace's metadata; $null without it.
function Fact($info, [string]$key) {
  if (-not $info) { return $null }
  foreach ($pair in $info.metadata) { if ("$($pair[0])" -eq $key) { return [double]$pair[1] } }
  $null
}
# Application errors of the programs here since a moment: the times at which they were written.
function Crashes([datetime]$since) {
  $filter = @{ LogName = "Application"; ProviderName = "Application Error"; Id = 1000; StartTime = $since }
  $all = @(Get-WinEvent -FilterHashtable $filter -ErrorAction SilentlyContinue)
  @($all | Where-Object { $_.Message -match "first_hour|busy\.exe|inject|stk\.exe" } | ForEach-Object { $_.TimeCreated })
}
function Wanted([string]$name) {
  $script:part = $name
  if ($Only.Count -gt 0 -and $Only -notcontains $name) { return $false }
  Write-Host ""
  Write-Host "-- $name"
  $true
}
# A part that throws is a failed part, not the end of the script.
function Part([string]$name, [scriptblock]$body) {
  if (-not (Wanted $name)) { return }
  if ($Quick -and ((Get-Date) - $began).TotalMinutes -gt 9) { Note "left out" "ten minutes are over"; return }
  $from = Get-Date
  $script:exceptions = @()
  try { & $body }
  catch { Check "the part runs to its end" $false "$_ $($_.InvocationInfo.PositionMessage)" }
  Check "no program was ended by an exception" ($script:exceptions.Count -eq 0) ($script:exceptions -join ", ")
  $script:spans += [pscustomobject]@{ part = $name; from = $from; to = Get-Date }
}
# Records a mode of first_hour from its start to its end, or for some seconds.
function Record-Mode([string]$mode, [double]$seconds, [string[]]$more, [string]$log, [int]$rate = 1000, [string]$exe = "first_hour.exe",
  [string]$injectExe = "inject.exe", [string[]]$options = @()) {
  $target = Start-Ready "$Programs\$exe" (@($mode, "$($seconds + 4)") + $more) $log
  $for = [Math]::Max(1, [int]$seconds)
  $recorder = Start-Logged "$Bin\$injectExe" (@("--pid", "$($target.Id)", "-o", "$work\$log.stk", "-r", "$rate", "-d", "${for}s") + $options) "$log-inject"
  $injectCode = Wait-Logged $recorder ($for + 90)
  $code = Wait-Logged $target ([int]$seconds + 90)
  [pscustomobject]@{ code = $code; inject = $injectCode; right = (Was-Right $log); info = (Info "$work\$log.stk"); seconds = $for }
}
function Inject-Code([string[]]$arguments, [string]$log, [int]$seconds = 60) { Invoke-Logged "$Bin\inject.exe" $arguments $log $seconds }
# The exit code of stk verify for a trace; $null if there is none.
function Verified([string]$trace) {
  if (-not (Test-Path $trace)) { return $null }
  Invoke-Logged "$Bin\stk.exe" @("verify", $trace) ([IO.Path]::GetFileNameWithoutExtension($trace) + "-verify")
}
# How many of a trace's events are of a kind; $null if they cannot be read.
function Events([string]$trace, [string]$kind, [string]$log) {
  if ((Invoke-Logged "$Bin\stk.exe" @("events", "--kind", $kind, $trace) $log) -ne 0) { return $null }
  @(Select-String $kind "$work\$log.out").Count
}
# Waits until inject records: inject status names the process.
function Wait-Recording([string]$id, [string]$log) {
  for ($i = 0; $i -lt 40; $i++) {
    if ((Inject-Code @("status", "--pid", $id) $log) -eq 0) { return $true }
    Start-Sleep -Milliseconds 250
  }
  $false
}

# ---- facts, and the self-check

Part "doctor" {
  $code = Invoke-Logged "$Bin\inject.exe" @("doctor", "--json", "-o", "$work\doctor.json") "doctor"
  Check "inject doctor exits with 0 (nothing is bad)" ($code -eq 0) $code
  $report = Get-Content -Raw -Encoding UTF8 "$work\doctor.json" | ConvertFrom-Json
  Check "doctor finds nothing bad" ($report.summary.bad -eq 0) $report.summary.bad
  foreach ($fact in $report.facts) {
    if ($fact.verdict -ne "ok") { Note "$($fact.verdict): $($fact.group) $($fact.name)" "$($fact.value) $($fact.explanation)" }
  }
}

# What else of this system bears on the results. Nothing here fails: a query that this user may not make is a note, too.
Part "environment" {
  $queries = [ordered]@{
    "system" = { $os = Get-CimInstance Win32_OperatingSystem; "$($os.Caption) $($os.Version) $($os.OSArchitecture)" }
    "machine" = { $one = Get-CimInstance Win32_ComputerSystem; "$($one.Manufacturer) $($one.Model), hypervisor: $($one.HypervisorPresent)" }
    "processors" = { (Get-CimInstance Win32_Processor | ForEach-Object { "$($_.Name) x$($_.NumberOfLogicalProcessors)" }) -join "; " }
    "power scheme" = { powercfg /getactivescheme }
    "power requests (needs an administrator)" = { (powercfg /requests) -join " " }
    "VBS status, running services" = {
      $guard = Get-CimInstance -Namespace root\Microsoft\Windows\DeviceGuard -ClassName Win32_DeviceGuard -ErrorAction Stop
      "$($guard.VirtualizationBasedSecurityStatus); $($guard.SecurityServicesRunning -join ' ')"
    }
    "Smart App Control (1 on, 2 evaluating)" = { (Get-ItemProperty HKLM:\SYSTEM\CurrentControlSet\Control\CI\Policy -ErrorAction Stop).VerifiedAndReputablePolicyState }
    "security products" = {
      (Get-CimInstance -Namespace root\SecurityCenter2 -ClassName AntiVirusProduct -ErrorAction Stop | ForEach-Object { $_.displayName }) -join "; "
    }
    "Defender: real time, tamper protection, engine" = {
      $defender = Get-MpComputerStatus -ErrorAction Stop
      "$($defender.RealTimeProtectionEnabled) $($defender.IsTamperProtected) $($defender.AMEngineVersion)"
    }
    "Windows Error Reporting is off (then no event 1000 is written)" = {
      $key = "Microsoft\Windows\Windows Error Reporting"
      "machine: $((Get-ItemProperty HKLM:\SOFTWARE\$key).Disabled), user: $((Get-ItemProperty HKCU:\SOFTWARE\$key -ErrorAction SilentlyContinue).Disabled)"
    }
    "crash dumps are kept (LocalDumps, set by an administrator)" = { Test-Path "HKLM:\SOFTWARE\Microsoft\Windows\Windows Error Reporting\LocalDumps" }
    "PowerShell" = { $PSVersionTable.PSVersion.ToString() }
  }
  foreach ($name in $queries.Keys) {
    try { Note $name ((& $queries[$name]) -join " ") } catch { Note $name "not known: $_" }
  }
  # What others put into every program shows in a plain one.
  $plain = Start-Ready "$Programs\first_hour.exe" @("idle", "3", "1") "plain"
  $modules = @((Get-Process -Id $plain.Id).Modules)
  $foreign = @($modules | Where-Object { $_.FileName -notlike "$env:WINDIR\*" -and $_.ModuleName -notlike "first_hour*" } | ForEach-Object { $_.FileName })
  Note "DLLs in a plain program that are not Windows' own" "$($foreign.Count) of $($modules.Count): $($foreign -join ' ')"
  $null = Wait-Logged $plain 30
}

# ---- churn. Threads that live 0 to 200 microseconds: a census that read a dead thread's TEB would crash the program.

Part "churn" {
  $seconds = [Math]::Max(5, 60 * $scale)
  $run = Record-Mode "churn" $seconds @() "churn"
  Check "the program ends with 0" ($run.code -eq 0) $run.code
  Check "its results are right" $run.right $run.right
  Check "inject ends with 0" ($run.inject -eq 0) $run.inject
  Check "the trace is complete" ($run.info -and $run.info.complete) $run.info.samples
  Note "threads that lived" (Said "churn" "threads")
}

# ---- exit. The process ends at a random moment while it is recorded.

Part "exit" {
  $each = [Math]::Max(4, [int](100 * $scale * $scale))
  foreach ($how in @("exit-main", "exit-thread", "exit-terminate", "exit-last", "exit-abort")) {
    $left = 0; $unreadable = 0; $wrong = 0; $reasons = @()
    for ($n = 0; $n -lt $each; $n++) {
      $after = 0.2 + (Get-Random -Maximum 300) / 1000
      $target = Start-Ready "$Programs\first_hour.exe" @($how, "$after") "exit"
      $trace = "$work\exit.stk"
      Remove-Item $trace -ErrorAction SilentlyContinue
      $recorder = Start-Logged "$Bin\inject.exe" @("--pid", "$($target.Id)", "-o", $trace) "exit-inject"
      if (-not $target.WaitForExit(10000)) {
        $left++
        Copy-Item $trace "$work\left-$how-$n.stk" -ErrorAction SilentlyContinue
        $target.Kill()
      }
      elseif ((Ended $target) -notin 0, 3, 7) { $left++ }
      if ($null -eq (Wait-Logged $recorder 40)) { $left++ }
      # A process that had gone before it could be opened leaves no trace: inject then ends with 3.
      if ($recorder.ExitCode -eq 3) { continue }
      $info = Info $trace
      if (-not $info) { $unreadable++; Copy-Item $trace "$work\unreadable-$how-$n.stk" -ErrorAction SilentlyContinue }
      else {
        if ($info.damage.Count -gt 0) { $wrong++ }
        # A terminated process cannot say that it ends; one that ended before its first sample need not.
        if ($info.end) { if ($info.end.reason -ne "the process was exiting") { $reasons += $info.end.reason } }
        elseif ($how -ne "exit-terminate" -and $info.samples -gt 0) { $reasons += "none" }
      }
    }
    Check "$how, $each times: each process ends within 10 s with its own code" ($left -eq 0) $left
    Check "$how, $each times: every trace can be read" ($unreadable -eq 0) $unreadable
    Check "$how, $each times: no trace is damaged" ($wrong -eq 0) $wrong
    Check "$how, $each times: each trace says that the process was exiting" ($reasons.Count -eq 0) "$($reasons.Count) do not: $($reasons -join ', ')"
  }
}

# ---- the agent leaves: over and over, and nothing of it stays

Part "unload" {
  $times = [Math]::Max(10, [int](50 * $scale))
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "$($times * 8 + 20)") "unload"
  $id = "$($target.Id)"
  $failed = @(); $before = 0
  for ($n = 0; $n -lt $times -and -not $target.HasExited; $n++) {
    $recorded = Inject-Code @("--pid", $id, "-o", "$work\unload.stk", "-d", "300ms", "--force") "unload-record"
    $left = Inject-Code @("stop", "--pid", $id, "--unload") "unload-stop"
    if ($recorded -ne 0 -or $left -ne 0) { $failed += "$recorded/$left" }
    # Of the first recordings some handles stay: the system opens files and threads' objects once.
    if ($n -eq 2) { $target.Refresh(); $before = $target.HandleCount }
  }
  Remove-Item "$work\unload.stk.old*" -ErrorAction SilentlyContinue
  Check "$times times: recorded, and the agent left (exit codes 0)" ($failed.Count -eq 0 -and $n -eq $times) "$($failed.Count) did not: $($failed -join ' ')"
  $target.Refresh()
  $handles = $target.HandleCount - $before
  # The program's own threads come and go.
  Check "no handle stays in the program for each time" ($handles -lt $times / 2) "$handles more than at first"
  $modules = @((Get-Process -Id $target.Id).Modules | Where-Object { $_.ModuleName -like "agent*" })
  Check "agent.dll is no module of the program any more" ($modules.Count -eq 0) $modules.Count
  Check "the last trace is whole" ((Verified "$work\unload.stk") -eq 0) ""
  Check "the program still runs" (-not $target.HasExited) $target.HasExited
  Stop-Process -Id $target.Id -Force -ErrorAction SilentlyContinue
}

# ---- exceptions, many: each goes through the agent's handler

Part "triggers" {
  $seconds = [Math]::Max(5, 20 * $scale)
  $run = Record-Mode "throws" $seconds @() "triggers" 1000 "first_hour.exe" "inject.exe" @("--trigger", "exception")
  Check "the program ends with 0 and each exception was handled once" ($run.code -eq 0 -and $run.right) "$($run.code), $(Said "triggers" "exceptions") exceptions"
  Check "inject ends with 0" ($run.inject -eq 0) $run.inject
  Check "stk verify finds no damage" ((Verified "$work\triggers.stk") -eq 0) ""
  $events = Events "$work\triggers.stk" "exception" "triggers-events"
  # At most 100 a second are recorded, the others are counted.
  Check "the trace has exceptions" ($events -ge 100) $events
}

# ---- the last seconds: snap, and a program that is killed

Part "flight" {
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "90") "flight"
  $id = "$($target.Id)"
  $recorder = Start-Logged "$Bin\inject.exe" @("--pid", $id, "--flight", "5s", "-o", "$work\flight.stk") "flight-inject"
  Check "it records" (Wait-Recording $id "flight-status") ""
  Start-Sleep -Seconds ([Math]::Max(3, [int](15 * $scale)))
  $code = Inject-Code @("snap", "--pid", $id) "flight-snap" 90
  Check "inject snap ends with 0" ($code -eq 0) $code
  Check "its trace is whole" ((Verified "$work\flight-1.stk") -eq 0) ""
  Start-Sleep -Seconds 2
  Stop-Process -Id $target.Id -Force
  Check "inject ends when the program is killed" ($null -ne (Wait-Logged $recorder 60)) $recorder.ExitCode
  $info = Info "$work\flight-2.stk"
  Check "the killed program's last seconds are there" ($info -and $info.samples -gt 0) $info.samples
}

# ---- a ring of files

Part "rotate" {
  $seconds = [Math]::Max(6, 20 * $scale)
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "$($seconds + 15)") "rotate"
  $code = Inject-Code @("--pid", "$($target.Id)", "-o", "$work\rotate.stk", "--rotate", "1s", "-d", "$([int]$seconds)s") "rotate-inject" ([int]$seconds + 90)
  Check "inject ends with 0" ($code -eq 0) $code
  $files = @(Get-ChildItem "$work\rotate.*.stk")
  Check "a file for each second" ($files.Count -ge $seconds / 2) $files.Count
  $damaged = @($files | Where-Object { (Verified $_.FullName) -ne 0 } | ForEach-Object { $_.Name })
  Check "each file alone is whole" ($damaged.Count -eq 0) "$($damaged -join ' ')"
  Check "the program ends with 0 and its results are right" ((Wait-Logged $target 90) -eq 0 -and (Was-Right "rotate")) $target.ExitCode
}

# ---- children

Part "children" {
  $seconds = [Math]::Max(5, 15 * $scale)
  $code = Inject-Code @("--children", "-o", "$work\children-%p.stk", "--", "$Programs\first_hour.exe", "children", "$seconds") "children" ([int]$seconds + 120)
  Check "inject passes 0 on: no child was missed, each ended with its own code" ($code -eq 0) $code
  $files = @(Get-ChildItem "$work\children-*.stk")
  $born = Said "children" "children"
  Check "a trace for each child, and the program's" ($null -ne $born -and $files.Count -ge $born + 1) "$($files.Count) of $born + 1"
  $damaged = @($files | Where-Object { (Verified $_.FullName) -ne 0 } | ForEach-Object { $_.Name })
  Check "each is whole" ($damaged.Count -eq 0) "$($damaged -join ' ')"
}

# ---- marks and pauses

Part "marks" {
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "60") "marks"
  $id = "$($target.Id)"
  $recorder = Start-Logged "$Bin\inject.exe" @("--pid", $id, "-o", "$work\marks.stk") "marks-inject"
  Check "it records" (Wait-Recording $id "marks-status") ""
  foreach ($words in @(@("mark", "--pid", $id, "first hour"), @("pause", "--pid", $id), @("status", "--pid", $id, "--json"), @("resume", "--pid", $id), @("stop", "--pid", $id))) {
    Start-Sleep -Milliseconds 700
    $code = Inject-Code $words "marks-$($words[0])"
    Check "inject $($words[0]) ends with 0" ($code -eq 0) $code
  }
  Check "the stopped inject ends with 0" ((Wait-Logged $recorder 30) -eq 0) $recorder.ExitCode
  Check "stk verify finds no damage" ((Verified "$work\marks.stk") -eq 0) ""
  $null = Events "$work\marks.stk" "mark" "marks-events"
  Check "the mark is in the trace" ([bool](Select-String -Quiet "first hour" "$work\marks-events.out")) ""
  $info = Info "$work\marks.stk"
  Check "the pause is in the trace" ($info -and @($info.pauses).Count -eq 1) "$(@($info.pauses).Count)"
  Stop-Process -Id $target.Id -Force -ErrorAction SilentlyContinue
}

# ---- top

Part "top" {
  $target = Start-Ready "$Programs\first_hour.exe" @("saturate", "30") "top"
  $code = Inject-Code @("top", "--pid", "$($target.Id)", "--once") "top-once" 60
  Check "inject top --once ends with 0" ($code -eq 0) $code
  Check "it shows the program" ([bool](Select-String -Quiet "first_hour" "$work\top-once.out")) ""
  Check "it leaves no trace in the folder for temporary files" (@(Get-ChildItem ([IO.Path]::GetTempPath()) -Filter "*.stk" | Where-Object { $_.CreationTime -gt $began }).Count -eq 0) ""
  Stop-Process -Id $target.Id -Force -ErrorAction SilentlyContinue
}

# ---- a trace that is moved when it is whole

Part "moveto" {
  New-Item -ItemType Directory "$work\moved" | Out-Null
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "10") "moveto"
  $code = Inject-Code @("--pid", "$($target.Id)", "-o", "$work\moveto.stk", "--move-to", "$work\moved", "-d", "3s") "moveto-inject"
  Check "inject ends with 0" ($code -eq 0) $code
  Check "the trace is in its place, and nowhere else" ((Test-Path "$work\moved\moveto.stk") -and -not (Test-Path "$work\moveto.stk")) ""
  Check "it is whole" ((Verified "$work\moved\moveto.stk") -eq 0) ""
  $null = Wait-Logged $target 60
}

# ---- launch

Part "launch" {
  $code = Invoke-Logged "$Bin\inject.exe" @("-o", "$work\launch.stk", "--", "$Programs\first_hour.exe", "exit-main", "1") "launch"
  Check "a native program's exit code is passed on" ($code -eq 7) $code
  $info = Info "$work\launch.stk"
  Check "its trace is complete" ($info -and $info.complete) $info.samples
  $waiter = Start-Logged "$Bin\inject.exe" @("--wait-for", "first_hour.exe", "-o", "$work\waited.stk", "-d", "2s") "waited-inject"
  Start-Sleep -Seconds 1
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "6") "waited"
  Check "inject --wait-for records the next program of that name" ((Wait-Logged $waiter 60) -eq 0 -and (Verified "$work\waited.stk") -eq 0) $waiter.ExitCode
  $null = Wait-Logged $target 60
  $csc = "$env:WINDIR\Microsoft.NET\Framework64\v4.0.30319\csc.exe"
  if (Test-Path $csc) {
    Set-Content -Encoding ASCII "$work\framework.cs" "class P { static int Main() { System.IO.File.WriteAllText(`"framework-ran.txt`", `"x`"); System.Threading.Thread.Sleep(1000); return 9; } }"
    $null = Invoke-Logged $csc @("/nologo", "/out:$work\framework.exe", "$work\framework.cs") "csc"
    $code = Invoke-Logged "$Bin\inject.exe" @("-o", "$work\framework.stk", "--", "$work\framework.exe") "framework"
    $ran = Test-Path "$work\framework-ran.txt"
    # Either it is recorded and its code passed on, or it is refused before it has run.
    Check "a .NET Framework program is recorded, or refused before it runs" (($code -eq 9 -and $ran) -or ($code -ge 125 -and $code -le 127 -and -not $ran)) "$code, ran: $ran"
  }
}

# ---- life cycle: a second recording, two injects at once, stop, inject killed, the target killed

Part "lifecycle" {
  $target = Start-Ready "$Programs\first_hour.exe" @("churn", "60") "life"
  $id = "$($target.Id)"
  foreach ($n in 1, 2) {
    $code = Invoke-Logged "$Bin\inject.exe" @("--pid", $id, "-o", "$work\life-$n.stk", "-d", "2s") "life-$n"
    Check "recording $n of the same process" ($code -eq 0) $code
  }
  $first = Start-Logged "$Bin\inject.exe" @("--pid", $id, "-o", "$work\life-3.stk") "life-3"
  Start-Sleep -Seconds 3
  $code = Invoke-Logged "$Bin\inject.exe" @("--pid", $id, "-o", "$work\life-4.stk") "life-4"
  Check "a second inject is refused with 1" ($code -eq 1) $code
  $clock = [Diagnostics.Stopwatch]::StartNew()
  $code = Invoke-Logged "$Bin\inject.exe" @("stop", "--pid", $id) "life-stop"
  # The first stop waits for the reading of every image, through security software.
  Check "inject stop ends with 0 within 5 s" ($code -eq 0 -and $clock.ElapsedMilliseconds -lt 5000) "$code, $($clock.ElapsedMilliseconds) ms"
  $code = Wait-Logged $first 30
  Check "the stopped inject ends with 0" ($code -eq 0) $code

  $killed = Start-Logged "$Bin\inject.exe" @("--pid", $id, "-o", "$work\life-5.stk") "life-5"
  Start-Sleep -Seconds 3
  $killed.Kill()
  Start-Sleep -Seconds 3
  $info = Info "$work\life-5.stk"
  Check "when inject is killed the recording ends and the trace is complete" ($info -and $info.complete) $info.end.reason

  $ps = Invoke-Logged "$Bin\inject.exe" @("ps", "--json") "ps"
  Check "inject ps ends with 0" ($ps -eq 0) $ps

  $last = Start-Logged "$Bin\inject.exe" @("--pid", $id, "-o", "$work\life-6.stk") "life-6"
  Start-Sleep -Seconds 3
  Stop-Process -Id $target.Id -Force
  Check "inject ends when its target is killed" ($null -ne (Wait-Logged $last 40)) $last.ExitCode
  $code = Invoke-Logged "$Bin\stk.exe" @("convert", "$work\life-6.stk", "--to", "speedscope", "-o", "$work\life-6.json") "life-6-convert"
  Check "the trace of a killed target converts" ($code -eq 0) $code
  $code = Invoke-Logged "$Bin\inject.exe" @("--pid", "4294967292", "-o", "$work\none.stk") "nobody"
  Check "a process that does not exist: exit code 3" ($code -eq 3) $code
}

# ---- a 32-bit program, by the 64-bit inject

Part "x86" {
  if ((Test-Path "$Programs\first_hour32.exe") -and (Test-Path "$Bin\inject32.exe")) {
    $run = Record-Mode "churn" ([Math]::Max(5, 20 * $scale)) @() "x86" 1000 "first_hour32.exe"
    Check "the 32-bit program ends with 0" ($run.code -eq 0 -and $run.right) $run.code
    Check "inject hands over to inject32 and ends with 0" ($run.inject -eq 0) $run.inject
    Check "the trace is x86 and complete" ($run.info -and $run.info.arch -eq "x86" -and $run.info.complete) $run.info.samples
  }
  else { Note "left out" "first_hour32.exe or inject32.exe is missing" }
}

# ---- saturation. Twice as many busy threads as processors.

Part "saturation" {
  $seconds = [Math]::Max(5, 20 * $scale)
  $run = Record-Mode "saturate" $seconds @("cabinet.dll") "saturation"
  Check "the program ends with 0" ($run.code -eq 0) $run.code
  Check "the trace is complete" ($run.info -and $run.info.complete) $run.info.samples
  $lost = 100.0
  if ($run.info -and $run.info.samples -gt 0) { $lost = 100.0 * $run.info.dropped / ($run.info.samples + $run.info.dropped) }
  Check "fewer than $soft % of the samples were dropped" ($lost -lt $soft) "$lost %"
  Note "all losses by reason" ($run.info.drops | ConvertTo-Json -Compress)
}

# ---- idle. 300 threads that only wait must cost next to nothing.

Part "idle" {
  $seconds = [Math]::Max(5, 20 * $scale)
  $run = Record-Mode "idle" $seconds @("300") "idle"
  Check "the program ends with 0" ($run.code -eq 0) $run.code
  $spent = Said "idle" "waiting_cpu_ms"
  Check "300 waiting threads used less than $(10 * $soft) % of a processor" ($null -ne $spent -and $spent -lt $seconds * 100 * $soft) "$spent ms in $seconds s"
  $suspensions = Fact $run.info "recorder.suspensions"
  $looks = 300 * (Fact $run.info "recorder.passes")
  Check "fewer than $soft % of the looks at the threads suspended one" ($null -ne $suspensions -and $looks -gt 0 -and $suspensions -lt $looks / 100 * $soft) "$suspensions of $looks"
  # By these the recorder judges whether a thread has run: on some virtual machines they are far from the truth.
  Note "calibration: cycles a second, of a suspension (median), its time (ns)" "$(Fact $run.info "recorder.cycles_per_second") $(Fact $run.info "recorder.suspension_cycles_p50") $(Fact $run.info "recorder.suspension_ns_p50")"
  # Of all of the recorder's threads: the trace does not have the sampler's alone.
  $cpu = Fact $run.info "recorder.cpu_ns"
  Check "the recorder used less than $(10 * $soft) % of a processor" ($null -ne $cpu -and $cpu -lt $run.seconds * 1e8 * $soft) "$cpu ns in $($run.seconds) s"
  foreach ($pair in $run.info.metadata) { if ("$($pair[0])" -like "recorder.*") { Note $pair[0] $pair[1] } }
}

# ---- rates. Each pass looks at every thread once; the duration counts from the first one.

Part "rates" {
  foreach ($rate in @(100, 1000, 2000)) {
    $seconds = [Math]::Max(4, 10 * $scale)
    $run = Record-Mode "idle" $seconds @("8") "rate-$rate" $rate
    $achieved = (Fact $run.info "recorder.passes") / $run.seconds
    Check "$rate Hz are achieved within $(2 * $soft) %" ([Math]::Abs($achieved - $rate) -le $rate * 0.02 * $soft) $achieved
    Note "$rate Hz: losses by reason" ($run.info.drops | ConvertTo-Json -Compress)
    $run = Record-Mode "saturate" $seconds @("cabinet.dll") "rate-saturated-$rate" $rate
    $achieved = (Fact $run.info "recorder.passes") / $run.seconds
    Note "$rate Hz on saturated processors: achieved, samples, losses" "$achieved $($run.info.samples) $(Total-Drops $run.info)"
  }
}

# ---- the PEB lock, minidumps of itself, PulseEvent

Part "peblock" {
  $seconds = [Math]::Max(5, 20 * $scale)
  $alone = Start-Ready "$Programs\first_hour.exe" @("peb-lock", "$($seconds + 4)") "peblock-alone"
  $null = Wait-Logged $alone ([int]$seconds + 90)
  $run = Record-Mode "peb-lock" $seconds @() "peblock"
  $before = Said "peblock-alone" "operations"
  $with = Said "peblock" "operations"
  Check "the program's results are right" $run.right $run.right
  $loss = 100.0
  if ($before) { $loss = 100.0 * (1 - $with / $before) }
  Check "throughput fell by less than $(5 * $soft) %" ($loss -lt 5 * $soft) "$loss %"
  Note "all losses by reason" ($run.info.drops | ConvertTo-Json -Compress)
}
Part "dumps" {
  $seconds = [Math]::Max(5, 50 * $scale)
  $run = Record-Mode "dumps" $seconds @() "dumps"
  Check "the program that dumps itself ends with 0" ($run.code -eq 0) $run.code
  Check "it wrote dumps" ((Said "dumps" "dumps") -gt 0) (Said "dumps" "dumps")
}
Part "pulse" {
  $seconds = [Math]::Max(5, 60 * $scale)
  $run = Record-Mode "pulse" $seconds @() "pulse"
  Check "the program ends with 0" ($run.code -eq 0) $run.code
  Note "pulses that arrived" (Said "pulse" "pulses")
  Note "pulses that were lost (documented, see docs/reference/recorder-effects.md)" (Said "pulse" "lost")
}

# ---- busy: threads, functions, names that are not ASCII

Part "busy" {
  if (-not $Busy) { Note "left out" "no busy.exe: give -Busy FOLDER"; return }
  $plain = Start-Ready "$Busy\busy.exe" @("1") "busy-alone"
  $null = Wait-Logged $plain 60
  $checksum = (Select-String "^checksum (\w+)" "$work\busy-alone.out").Matches[0].Groups[1].Value
  $target = Start-Ready "$Busy\busy.exe" @("12") "busy"
  $code = Invoke-Logged "$Bin\inject.exe" @("--pid", "$($target.Id)", "-o", "$work\busy.stk", "-d", "5s") "busy-inject"
  Check "inject ends with 0" ($code -eq 0) $code
  $code = Wait-Logged $target 60
  Check "busy ends with 0" ($code -eq 0) $code
  Check "busy computes the same while it is recorded" ([bool](Select-String -Quiet "^checksum $checksum" "$work\busy.out")) $checksum
  $code = Invoke-Logged "$Bin\stk.exe" @("verify", "$work\busy.stk") "busy-verify"
  Check "stk verify finds no damage" ($code -eq 0) $code
  $info = Info "$work\busy.stk"
  Check "at least 300 samples a second" ($info -and $info.samples -ge 1500) $info.samples
  $null = Invoke-Logged "$Bin\stk.exe" @("stats", "$work\busy.stk", "-y", $Busy) "busy-stats"
  $json = "$work\busy.speedscope.json"
  $code = Invoke-Logged "$Bin\stk.exe" @("convert", "$work\busy.stk", "--to", "speedscope", "-y", $Busy, "-o", $json) "busy-convert"
  Check "stk convert ends with 0" ($code -eq 0) $code
  $profiles = Get-Content -Raw -Encoding UTF8 $json | ConvertFrom-Json
  $expected = [ordered]@{
    "recursion"            = @("recurse_even", "recurse_odd", "recursion_bottom")
    "leaf loops"           = @("leaf_loops", "leaf_multiply")
    "gr$oUmlaut${sharpS}e" = @("measure_sizes", "rotate_and_add")
    "spawner"              = @("spawn_worker")
    "plugins"              = @("plugin_a_work", "plugin_b_work")
    "waiter"               = @("wait_for_event")
  }
  foreach ($thread in $expected.Keys) {
    $mine = @($profiles.profiles | Where-Object { $_.name.Contains($thread) })
    Check "thread $thread is there by its name" ($mine.Count -gt 0) $mine.Count
    if ($mine.Count -eq 0) { continue }
    $used = @{}
    foreach ($sample in $mine[0].samples) { foreach ($index in $sample) { $used[$index] = $true } }
    $names = @($used.Keys | ForEach-Object { $profiles.shared.frames[$_].name })
    foreach ($function in $expected[$thread]) {
      $seen = @($names | Where-Object { $_.Contains($function) }).Count
      Check "$thread with $function" ($seen -gt 0) $seen
    }
  }
  Check "a DLL name that is not ASCII" ([bool](Select-String -Quiet -Encoding UTF8 "plugin_$umlaut" $json)) ""
}

# ---- the system's own unwinder walks each stack too: the one ground truth there is

Part "walks" {
  if (-not $Busy) { Note "left out" "no busy.exe: give -Busy FOLDER"; return }
  $target = Start-Ready "$Busy\busy.exe" @("20") "walks"
  $code = Invoke-Logged "$Bin\inject.exe" @("--pid", "$($target.Id)", "-o", "$work\walks.stk", "-d", "10s", "--check-walks") "walks-inject"
  $null = Wait-Logged $target 60
  if ($code -eq 0) {
    $code = Invoke-Logged "$Bin\stk.exe" @("verify", "--walks", "$work\walks.stk") "walks-verify"
    Check "stk verify --walks finds no difference that it cannot explain" ($code -eq 0) $code
  }
  else { Note "refused" $code }
}

# ---- what a first hour should have and this script has not

if ($Only.Count -eq 0) {
  $script:part = "not checked"
  Write-Host ""
  foreach ($missing in @(
      "2: churn under Application Verifier or full page heap",
      "4: context switches of the program with the waiting threads",
      "5: shares of waiting and running of a waiter, a spinner and a thread that works 1 % of the time",
      "6: on saturated processors the first sample within 200 ms, module events within 1 s, stop within 2 s",
      "8: launch of a program with windows, of .NET 8 and later, of one that is not large address aware",
      "9: share of whole stacks and the context replies of the 32-bit program",
      "10: jitter; rates with the window minimised, on battery, under EcoQoS",
      "11: mitigation policies, AppContainer, services, elevated and protected processes",
      "12: ps as administrator, with the log of Sysmon",
      "13: walks of node and .NET, for 60 s; top functions beside WPR's profile")) {
    Note $missing "by hand"
  }
}

# ---- application errors, which the system writes some seconds after the fact

$script:part = "crashes"
Write-Host ""
Start-Sleep -Seconds 5
$crashes = @(Crashes $began)
$during = @($crashes | ForEach-Object { $at = $_; ($script:spans | Where-Object { $_.from -le $at } | Select-Object -Last 1).part })
Check "no application error 1000" ($crashes.Count -eq 0) "$($crashes.Count) $($during -join ' ')"

# ---- the verdict: ten lines

$verdicts = [ordered]@{
  "this system is fit"             = @("doctor", "environment")
  "programs survive being recorded" = @("churn", "exit", "crashes")
  "the agent leaves"               = @("unload")
  "exceptions, memory, files"      = @("triggers", "flight", "rotate")
  "children, marks, top, moving"   = @("children", "marks", "top", "moveto")
  "starts, stops and kills"        = @("launch", "lifecycle")
  "32-bit programs"                = @("x86")
  "cost and rate"                  = @("saturation", "idle", "rates")
  "locks, dumps, pulses"           = @("peblock", "dumps", "pulse")
  "stacks and names"               = @("busy", "walks")
}
$lines = @()
foreach ($line in $verdicts.Keys) {
  $mine = @($script:results | Where-Object { $verdicts[$line] -contains $_.part })
  $checked = @($mine | Where-Object { $null -ne $_.ok })
  $wrong = @($checked | Where-Object { -not $_.ok })
  $left = @($mine | Where-Object { $_.what -eq "left out" }).Count
  $word = "ok"
  $more = ""
  if ($checked.Count -eq 0) { $word = "not run" }
  elseif ($wrong.Count -gt 0) { $word = "FAILED"; $more = "; first: $($wrong[0].part): $($wrong[0].what) [$($wrong[0].number)]" }
  if ($left -gt 0) { $more += "; $left left out" }
  $lines += "{0,-8}{1}: {2} of {3} criteria{4}" -f $word, $line, ($checked.Count - $wrong.Count), $checked.Count, $more
}
$lines | Set-Content -Encoding UTF8 "$work\verdict.txt"

# ---- everything into one zip

$events = @()
foreach ($query in @(
    @{ LogName = "Application"; ProviderName = "Application Error" },
    @{ LogName = "Application"; ProviderName = "Windows Error Reporting" },
    @{ LogName = "Microsoft-Windows-CodeIntegrity/Operational"; Id = @(3033, 3034, 3076, 3077, 3089) },
    @{ LogName = "Microsoft-Windows-AppLocker/EXE and DLL"; Id = @(8003, 8004) },
    @{ LogName = "Microsoft-Windows-Windows Defender/Operational"; Id = @(1006, 1007, 1015, 1116, 1117, 1121, 1122) })) {
  $query.StartTime = $began
  try {
    $events += Get-WinEvent -FilterHashtable $query -ErrorAction Stop |
      Where-Object { $_.Message -match "first_hour|busy|inject|stk|agent(32)?\.dll|framework\.exe" } |
      Select-Object -Property @("TimeCreated", "LogName", "ProviderName", "Id", "Message")
  }
  catch { $events += [pscustomobject]@{ TimeCreated = Get-Date; LogName = $query.LogName; ProviderName = ""; Id = 0; Message = "$_" } }
}
$events | ConvertTo-Json -Depth 4 | Set-Content -Encoding UTF8 "$work\events.json"
$failed = @($script:results | Where-Object { $_.ok -eq $false }).Count
[pscustomobject]@{
  version = 1
  windows = [Environment]::OSVersion.VersionString
  architecture = $env:PROCESSOR_ARCHITECTURE
  processors = [int]$env:NUMBER_OF_PROCESSORS
  began = $began.ToUniversalTime().ToString("o")
  quick = [bool]$Quick
  failed = $failed
  results = $script:results
} | ConvertTo-Json -Depth 5 | Set-Content -Encoding UTF8 "$work\summary.json"
# Texts first, then traces, those of failed parts before the others, small ones before large; traces do not become smaller in an archive.
$zip = "$work.zip"
$most = 5MB
$wrong = @($script:results | Where-Object { $_.ok -eq $false } | ForEach-Object { $_.part } | Select-Object -Unique)
$order = @(
  @{ Expression = { $_.Extension -eq ".stk" } },
  @{ Expression = { $name = $_.Name; -not @($wrong | Where-Object { $name -like "*$_*" }) } },
  @{ Expression = { $_.Length } })
$files = @(Get-ChildItem $work -Recurse -File | Where-Object { $_.Extension -notin ".exe", ".dmp", ".cs" -and $_.Name -notlike "*.speedscope.json" } | Sort-Object $order)
$sum = 0
$chosen = @()
foreach ($file in $files) {
  $sum += if ($file.Extension -eq ".stk") { $file.Length } else { $file.Length / 5 }
  if ($sum -lt $most * 0.9) { $chosen += $file.FullName }
}
@($files | Where-Object { $chosen -notcontains $_.FullName } | ForEach-Object { "$($_.Name) $($_.Length)" }) | Set-Content -Encoding UTF8 "$work\left-out.txt"
do {
  Compress-Archive -LiteralPath (@($chosen) + "$work\left-out.txt") -DestinationPath $zip -Force
  $fits = (Get-Item $zip).Length -le $most
  if (-not $fits) { $chosen = @($chosen | Select-Object -First ([int]($chosen.Count * 0.8))) }
} until ($fits -or $chosen.Count -eq 0)
Write-Host ""
Write-Host "$failed failed in $([int]((Get-Date) - $began).TotalSeconds) s. Please attach this file to a report: $zip"
foreach ($line in $lines) { Write-Host $line }
exit [Math]::Min($failed, 1)
