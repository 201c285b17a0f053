#include "daemon/session/process.h"

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace tensorlane::session {

std::string describe_end(std::uint32_t pid) {
  constexpr const char* kGone = "was killed or exited without goodbye";
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (pid == 0 || !std::getline(file, line)) return kGone;
  const std::size_t name_end = line.rfind(')');  // the command's name may hold anything
  if (name_end == std::string::npos) return kGone;
  std::istringstream rest(line.substr(name_end + 1));
  std::vector<std::string> fields;  // from field 3 of proc(5), the state
  for (std::string field; rest >> field;) fields.push_back(field);
  constexpr std::size_t kState = 0, kFlags = 6, kExitCode = 49;
  if (fields.size() <= kExitCode) return kGone;
  constexpr unsigned long kExiting = 0x4;  // PF_EXITING: sockets close before the process becomes a zombie
  const bool ending = fields[kState] == "Z" || fields[kState] == "X" || (std::stoul(fields[kFlags]) & kExiting) != 0;
  if (!ending) return "closed its session without goodbye";
  const int code = std::stoi(fields[kExitCode]);  // as wait(2) gives it; 0 where we may not know
  const int signal = code & 0x7f;
  if (signal != 0) return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  if (code != 0) return "exited with status " + std::to_string(code >> 8) + " without goodbye";
  return kGone;
}

}  // namespace tensorlane::session
