// What `tensorlane-probe` does with the commands that it reads: one JSON object a line, and lines of JSON as answers.
// README.md describes both.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/probe/answerer.h"
#include "common/probe/capture.h"
#include "common/probe/sweep.h"

namespace tensorlane::probe {

// Bounds of what one command may ask for.
inline constexpr std::size_t kMaxLine = std::size_t{4} << 20;
inline constexpr std::size_t kMaxFlows = 8192;
inline constexpr std::size_t kMaxListeners = 256;
inline constexpr std::size_t kMaxBursts = 16;

// One thread.
class Session {
 public:
  // `write` is given one line at a time, without its end. `root` stands for / where a test has files of its own.
  explicit Session(std::function<void(const std::string&)> write, std::string root = {});
  ~Session();

  // Its listeners also answer the connections that somebody else hands over there (answerer.h). Before handle().
  void take_connections_from(int channel) { channel_ = channel; }

  // Opens what needs CAP_NET_RAW. Without the capability the session does without: hops do not say how packets came,
  // and 802.1Q tags are not seen.
  void open_raw();

  // Carries out one command and writes its answers; the last one says "done" or "error". False: the line was no
  // command, and nothing that follows can be trusted.
  bool handle(const std::string& line);

 private:
  struct Commands;

  const std::function<void(const std::string&)> write_;
  const std::string root_;
  int raw_error_ = 0, channel_ = -1;
  IcmpSockets icmp_;
  Capture capture_;
  Token token_{};
  std::unique_ptr<Answerer> answerer_;
};

// 32 hexadecimal digits. False where they are none.
bool parse_token(const std::string& text, Token* token);
std::string token_text(const Token& token);

}  // namespace tensorlane::probe
