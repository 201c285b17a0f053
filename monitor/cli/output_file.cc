#include "monitor/cli/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace tensorlane::cli {
namespace {

Status cannot_write_output(const std::string& path, int error) {
  return Status(Code::kUnavailable, fmt::format("the file cannot be written: {}", std::strerror(error)), path,
                "name a file in a folder that exists and that you may write to, on a disk with free space");
}

}  // namespace

Status can_write_output(const std::string& path) {
  if (path.empty()) return {};
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) return cannot_write_output(path, EISDIR);
  const bool exists = std::filesystem::exists(path, unknown);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string asked = exists ? path : folder.empty() ? "." : folder.string();
  if (::access(asked.c_str(), exists ? W_OK : W_OK | X_OK) == 0) return {};
  return cannot_write_output(path, errno);
}

Status write_output(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? Status() : cannot_write_output(path, errno == 0 ? EIO : errno);
}

}  // namespace tensorlane::cli
