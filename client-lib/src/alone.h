// What stands in for the daemon where a job has one rank and its host has no daemon.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client-lib/src/channel.h"
#include "common/base/status.h"
#include "common/protocol/session.h"

namespace tensorlane::client {

// The other end of a session (common/protocol/session.h) in this process, on a thread of its own, which sleeps while
// nothing is asked. There is nobody to exchange anything with: an operation on a buffer leaves in it what is there, and
// is done; only an all-to-all's second half becomes its first. Names, ids and arenas are as a daemon has them. It
// trusts its client, which is this library.
class Alone {
 public:
  // Makes `channel` its client's end. `why`: for the status, what there is in place of a daemon. Errors: resource
  // exhausted. The object outlives the use of the channel.
  static Result<std::unique_ptr<Alone>> begin(Channel& channel, std::string why);
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  // Tensors that were registered together.
  struct Group {
    std::vector<std::string> names;
    std::vector<std::uint32_t> ids;
  };
  struct Tensor {
    std::string name;
    std::span<std::byte> exchanged;  // the buffer of an all-to-all; empty for others
  };

  Alone(UniqueFd socket, std::string why) : socket_(std::move(socket)), why_(std::move(why)) {}
  Status map_rings();
  void run();
  void complete_submissions();
  void publish(std::uint32_t taken);
  bool answer_next();
  void answer(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body, int fd = -1,
              int second_fd = -1);
  void refuse(std::uint32_t request, const Status& why);
  void welcome(std::uint32_t request);
  void give_arena(std::uint32_t request, std::span<const std::byte> body);
  void register_group(std::uint32_t request, std::span<const std::byte> body);
  void unregister_group(std::uint32_t request, std::span<const std::byte> body);
  std::span<std::byte> exchanged_by(const protocol::TensorBody& body) const;
  Status check(const std::string& group, const std::vector<std::string>& names) const;
  void say_status(std::uint32_t request);

  UniqueFd socket_, rings_fd_, wake_fd_;
  const std::string why_;
  std::span<std::byte> rings_;
  std::uint32_t taken_ = 0, completed_ = 0, tensors_ = 0;
  std::vector<std::uint32_t> free_ids_;
  std::map<std::string, Group> groups_;
  std::set<std::string> names_;
  std::vector<Tensor> coming_;                               // of the group whose packets come
  std::vector<std::span<std::byte>> arenas_;                 // by segment
  std::map<std::uint32_t, std::span<std::byte>> exchanges_;  // buffers of all-to-alls, by id
  std::thread thread_;
};

}  // namespace tensorlane::client
