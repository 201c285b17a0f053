// A folder of rendered files appears at once or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 11> kNames{"config_db.json", "openconfig.json", "junos.set",         "junos.xml",
                                                  "config.txt",     "nvue.sh",         "qos_features.conf", "apply.sh",
                                                  "verify.sh",      "rollback.sh",     "notes.txt"};

Status failed(const std::string& what, const fs::path& path, const std::string& fix) {
  return Status(Code::kInvalidArgument, what, path.string(), fix);
}

// Nothing but folders with files that this tool writes.
bool is_ours(const fs::path& out) {
  for (const auto& device : fs::directory_iterator(out)) {
    if (!device.is_directory() || device.is_symlink()) return false;
    for (const auto& file : fs::directory_iterator(device.path())) {
      const std::string name = file.path().filename();
      if (!file.is_regular_file() || std::find(kNames.begin(), kNames.end(), name) == kNames.end()) return false;
    }
  }
  return true;
}

Status write_device(const fs::path& folder, const RenderedDevice& device) {
  fs::create_directory(folder / device.name);
  for (const RenderedFile& file : device.files) {
    const fs::path path = folder / device.name / file.name;
    std::ofstream out(path, std::ios::binary);
    out << file.text << std::flush;
    if (!out) return failed("the file cannot be written", path, "free some space there");
    out.close();
    if (file.program) fs::permissions(path, fs::perms(0755));
  }
  return Status::ok_status();
}

Status write_all(const fs::path& out, const fs::path& fresh, const std::vector<RenderedDevice>& devices) {
  for (const RenderedDevice& device : devices) TL_RETURN_IF_ERROR(write_device(fresh, device));
  fs::permissions(fresh, fs::perms(0755));
  if (!fs::exists(out)) {
    fs::rename(fresh, out);
    return Status::ok_status();
  }
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, out.c_str(), RENAME_EXCHANGE) != 0)
    return failed(fmt::format("the folder cannot be replaced ({})", std::strerror(errno)), out,
                  "remove it, or name another one");
  return Status::ok_status();
}

}  // namespace

Status write_folder(const std::string& out, const std::vector<RenderedDevice>& devices) {
  try {
    for (const RenderedDevice& device : devices) {
      if (device.name.starts_with('.'))
        return failed("a device's name is no name for a folder", device.name, "expected one without '.' in front");
    }
    fs::path target = fs::absolute(out).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    if (fs::exists(target) && (!fs::is_directory(target) || !is_ours(target)))
      return failed("this is no folder of rendered configuration", target, "name a new folder or an empty one");
    std::string fresh = (target.parent_path() / ".tensorlane-switch-XXXXXX").string();
    if (mkdtemp(fresh.data()) == nullptr)
      return failed(fmt::format("no folder can be made there ({})", std::strerror(errno)), target.parent_path(),
                    "name a folder beside which one can be made");
    const Status written = write_all(target, fresh, devices);
    std::error_code ignored;
    fs::remove_all(fresh, ignored);  // what did not become OUT, or the OUT of before
    return written;
  } catch (const fs::filesystem_error& bad) {
    return failed(bad.code().message(), bad.path1(), "name a folder that can be written");
  }
}

}  // namespace tensorlane::switches
