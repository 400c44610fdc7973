# Records examples/busy on a real Windows and checks what comes out. For Windows PowerShell 5.1 or later; no administrator rights.
#
#   powershell -ExecutionPolicy Bypass -File tests\windows-check.ps1 [-Bin FOLDER] [-Busy FOLDER] [-Seconds 5]
#
#   -Bin    stk.exe, inject.exe and agent.dll: a folder unpacked from the release zip, or target\release (the default)
#   -Busy   busy.exe, its plug-ins and PDBs: copied from target/examples/busy of a Linux build, or built here with CMake and
#           MSVC (examples\busy\CMakeLists.txt); default: target\examples\busy, else target\examples\busy-msvc
#
# The project is developed without a Windows machine: this script is how one is asked. Please attach its whole output to a report.
param(
  [string]$Bin = "$PSScriptRoot\..\target\release",
  [string]$Busy = "",
  [int]$Seconds = 5
)
$ErrorActionPreference = "Stop"
$Bin = (Resolve-Path $Bin).Path
if ($Busy -eq "") {
  $Busy = @("busy", "busy-msvc") | ForEach-Object { "$PSScriptRoot\..\target\examples\$_" } |
    Where-Object { Test-Path "$_\busy.exe" } | Select-Object -First 1
  if (-not $Busy) { throw "No busy.exe found: build examples\busy (see its CMakeLists.txt) or give -Busy FOLDER." }
}
$Busy = (Resolve-Path $Busy).Path
$umlaut = [char]0xE4 # this file stays ASCII: Windows PowerShell 5.1 takes a script without a BOM for ANSI
$sharpS = [char]0xDF
$oUmlaut = [char]0xF6

$work = Join-Path ([IO.Path]::GetTempPath()) "stk-windows-check-$PID"
New-Item -ItemType Directory $work | Out-Null
$failed = 0
function Check([string]$what, [bool]$ok, [string]$detail = "") {
  if ($ok) { Write-Host "ok      $what" }
  else {
    $script:failed++
    Write-Host "FAILED  $what $detail"
  }
}
# Runs a program and gives its exit code; what it says goes to a file and, if it fails, to the console.
function Invoke-Program([string]$program, [string[]]$arguments, [string]$log) {
  $quoted = $arguments | ForEach-Object { if ($_ -match '\s') { "`"$_`"" } else { $_ } }
  $process = Start-Process $program -ArgumentList $quoted -NoNewWindow -Wait -PassThru `
    -RedirectStandardOutput "$work\$log.out" -RedirectStandardError "$work\$log.err"
  $process.ExitCode
}
function Start-Busy([int]$seconds, [string]$log) {
  $process = Start-Process "$Busy\busy.exe" -ArgumentList $seconds -WorkingDirectory $Busy -NoNewWindow -PassThru `
    -RedirectStandardOutput "$work\$log.out" -RedirectStandardError "$work\$log.err"
  $null = $process.Handle # else the exit code is lost
  for ($i = 0; $i -lt 100 -and -not (Select-String -Quiet "ready" "$work\$log.out"); $i++) { Start-Sleep -Milliseconds 100 }
  $process
}

Write-Host "Windows: $([Environment]::OSVersion.VersionString), $env:PROCESSOR_ARCHITECTURE, $env:NUMBER_OF_PROCESSORS processors"
Write-Host "Programs: $Bin; busy: $Busy; results: $work"

# What busy computes when nothing records it.
$plain = Start-Busy 1 "plain"
$plain.WaitForExit()
$checksum = (Select-String "^checksum (\w+)" "$work\plain.out").Matches[0].Groups[1].Value
Check "busy runs alone" ($plain.ExitCode -eq 0)

# A recording.
$trace = "$work\busy.stk"
$target = Start-Busy ($Seconds + 6) "recorded"
$code = Invoke-Program "$Bin\inject.exe" @("--pid", $target.Id, "$Bin\agent.dll", "-o", $trace, "--duration", "${Seconds}s") "inject"
Check "inject records for $Seconds s" ($code -eq 0) "exit code $code, see $work\inject.err"
$target.WaitForExit()
Check "busy ends in order after a recording" ($target.ExitCode -eq 0) "exit code $($target.ExitCode)"
Check "busy computes the same while recorded" ([bool](Select-String -Quiet "^checksum $checksum" "$work\recorded.out"))

# The trace.
$code = Invoke-Program "$Bin\stk.exe" @("verify", $trace) "verify"
Check "stk verify finds no damage" ($code -eq 0) "exit code $code"
$code = Invoke-Program "$Bin\stk.exe" @("info", $trace) "info"
Check "stk info" ($code -eq 0) "exit code $code"
$code = Invoke-Program "$Bin\stk.exe" @("stats", $trace, "-y", $Busy) "stats"
Check "stk stats" ($code -eq 0) "exit code $code"
$json = "$work\busy.speedscope.json"
$code = Invoke-Program "$Bin\stk.exe" @("convert", $trace, "--to", "speedscope", "-y", $Busy, "-o", $json) "convert"
Check "stk convert --to speedscope" ($code -eq 0) "exit code $code"

# Which function is seen on which thread.
if (Test-Path $json) {
  $profiles = Get-Content -Raw -Encoding UTF8 $json | ConvertFrom-Json
  $expected = [ordered]@{
    "recursion"                   = @("recurse_even", "recurse_odd", "recursion_bottom")
    "leaf loops"                  = @("leaf_loops", "leaf_multiply")
    "gr$oUmlaut${sharpS}e"        = @("measure_sizes", "rotate_and_add")
    "spawner"                     = @("spawn_worker")
    "plugins"                     = @("plugin_a_work", "plugin_b_work")
    "waiter"                      = @("wait_for_event")
  }
  foreach ($thread in $expected.Keys) {
    $mine = @($profiles.profiles | Where-Object { $_.name.Contains($thread) })
    Check "thread $thread is there by its name" ($mine.Count -gt 0)
    if ($mine.Count -eq 0) { continue }
    $used = @{}
    foreach ($sample in $mine[0].samples) { foreach ($index in $sample) { $used[$index] = $true } }
    $names = $used.Keys | ForEach-Object { $profiles.shared.frames[$_].name }
    foreach ($function in $expected[$thread]) {
      Check "  with $function" ([bool]($names | Where-Object { $_.Contains($function) }))
    }
  }
  $files = $profiles.shared.frames | ForEach-Object { $_.file }
  Check "a source path that is not ASCII" ([bool]($files | Where-Object { $_ -and $_.EndsWith("gr$oUmlaut${sharpS}e.cpp") }))
  Check "a DLL name that is not ASCII" ([bool](Select-String -Quiet -Encoding UTF8 "plugin_$umlaut" $json))
}

# Refusals.
$code = Invoke-Program "$Bin\inject.exe" @("--pid", "4294967292", "$Bin\agent.dll", "-o", "$work\none.stk") "nobody"
Check "inject says that a process does not exist (exit code 3)" ($code -eq 3) "exit code $code"

# A target that is killed: what was recorded until then must be readable.
$target = Start-Busy 60 "killed"
$recorder = Start-Process "$Bin\inject.exe" -ArgumentList "--pid", $target.Id, "`"$Bin\agent.dll`"", "-o", "`"$work\killed.stk`"" -NoNewWindow -PassThru `
  -RedirectStandardOutput "$work\killed-inject.out" -RedirectStandardError "$work\killed-inject.err"
Start-Sleep -Seconds 3
Stop-Process -Id $target.Id -Force
Check "inject ends when its target is killed" ($recorder.WaitForExit(15000))
$code = Invoke-Program "$Bin\stk.exe" @("convert", "$work\killed.stk", "--to", "speedscope", "-y", $Busy, "-o", "$work\killed.speedscope.json") "killed-convert"
Check "the trace of a killed target converts" ($code -eq 0) "exit code $code"

Write-Host ""
Get-Content "$work\stats.out" -ErrorAction SilentlyContinue | Select-Object -First 60
Write-Host ""
Write-Host "$failed failed. Files: $work"
exit [Math]::Min($failed, 1)
