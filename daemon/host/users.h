// The users whose jobs a lane carries: they share its time and its NICs evenly, and so do the jobs of each (laws 11,
// 19, 20).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "daemon/host/job_part.h"
#include "daemon/host/turns.h"

namespace tensorlane::host {

// What a block of work takes from the turn of who has it done, in bytes: those that it moves, and no less than 64 KiB,
// since what begins and ends an operation takes about as long as moving so many.
std::uint64_t work_cost(const JobBlock& block);

// The lane's thread. Jobs outlive their time here.
class Users {
 public:
  explicit Users(std::size_t rails) : rails_(rails) {}

  void add(JobPart& job);
  void remove(JobPart& job);

  // Takes submissions of all jobs, of one user at most `most` where there are several users. Returns how many.
  std::size_t collect(std::size_t most);

  // Gives a rail operations of one class: to each user in its turn, and to each of its jobs, as many as cost `quantum`;
  // together as many as *credit, which shrinks, has bytes for, and as cost `most`.
  struct Sent {
    std::size_t operations = 0;
    bool blocked = false;  // *credit was too little for what is next
  };
  Sent send(Turn& turn, RailIndex rail, ClassId cls, std::uint64_t quantum, std::uint64_t most, Bytes* credit,
            Time now);

  // Chooses the next block of arithmetic or copying: of the most urgent class of any job; inside a class users share
  // the bytes of the blocks evenly, and so do their jobs. `block` is empty. False when nothing is to do.
  bool choose_block(Time now, JobBlock& block);

 private:
  struct Share {
    Turn jobs;
    std::uint64_t deficit = 0;
  };
  struct User {
    std::uint32_t id = 0;
    std::vector<JobPart*> jobs;
    std::vector<std::array<Share, kMaxDataClasses + 1>> shares;  // by rail and class
    std::size_t submission_turn = 0;                             // which job's it is
    std::size_t work_turn = 0;                                   // which job's blocks were done last
    std::int64_t work_account = 0;                               // bytes of work that are left of its turn
  };

  std::size_t rails_;
  std::vector<User> users_;    // each has a job
  std::size_t work_turn_ = 0;  // whose blocks were done last
};

}  // namespace tensorlane::host
