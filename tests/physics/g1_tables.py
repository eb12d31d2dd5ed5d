"""The Unitree G1 as tables of published numbers: what `unilab/assets/g1.xml` is checked against."""

# ruff: noqa: E501

# body, parent, pos, quat (wxyz), mass, com, iquat (wxyz), diagonal inertia
BODIES = """
pelvis                    world                     0 0 0.793                   1 0 0 0                                       3.813     0 0 -0.07605                           1 0 -0.000399148 0                                 0.010549 0.0093089 0.0079184
left_hip_pitch_link       pelvis                    0 0.064452 -0.1027          1 0 0 0                                       1.35      0.002741 0.047791 -0.02606             0.954862 0.293964 0.0302556 0.030122               0.00181517 0.00153422 0.00116212
left_hip_roll_link        left_hip_pitch_link       0 0.052 -0.030465           0.996179 0 -0.0873386 0                       1.52      0.029812 -0.001045 -0.087934           0.977808 -1.97119e-05 0.205576 -0.0403793          0.00254986 0.00241169 0.00148755
left_hip_yaw_link         left_hip_roll_link        0.025001 0 -0.12412         1 0 0 0                                       1.702     -0.057709 -0.010981 -0.15078           0.600598 0.15832 0.223482 0.751181                 0.00776166 0.00717575 0.00160139
left_knee_link            left_hip_yaw_link         -0.078273 0.0021489 -0.17734 0.996179 0 0.0873386 0                        1.932     0.005457 0.003964 -0.12074             0.923418 -0.0327699 0.0158246 0.382067             0.0113804 0.0112778 0.00146458
left_ankle_pitch_link     left_knee_link            0 -9.4445e-05 -0.30001      1 0 0 0                                       0.074     -0.007269 0 0.011137                   0.603053 0.369225 0.369225 0.603053                1.89e-05 1.40805e-05 6.9195e-06
left_ankle_roll_link      left_ankle_pitch_link     0 0 -0.017558               1 0 0 0                                       0.608     0.026505 0 -0.016425                   -0.000481092 0.728482 -0.000618967 0.685065        0.00167218 0.0016161 0.000217621
right_hip_pitch_link      pelvis                    0 -0.064452 -0.1027         1 0 0 0                                       1.35      0.002741 -0.047791 -0.02606            0.954862 -0.293964 0.0302556 -0.030122             0.00181517 0.00153422 0.00116212
right_hip_roll_link       right_hip_pitch_link      0 -0.052 -0.030465          0.996179 0 -0.0873386 0                       1.52      0.029812 0.001045 -0.087934            0.977808 1.97119e-05 0.205576 0.0403793            0.00254986 0.00241169 0.00148755
right_hip_yaw_link        right_hip_roll_link       0.025001 0 -0.12412         1 0 0 0                                       1.702     -0.057709 0.010981 -0.15078            0.751181 0.223482 0.15832 0.600598                 0.00776166 0.00717575 0.00160139
right_knee_link           right_hip_yaw_link        -0.078273 -0.0021489 -0.17734 0.996179 0 0.0873386 0                        1.932     0.005457 -0.003964 -0.12074            0.923439 0.0345276 0.0116333 -0.382012             0.011374 0.0112843 0.00146452
right_ankle_pitch_link    right_knee_link           0 9.4445e-05 -0.30001       1 0 0 0                                       0.074     -0.007269 0 0.011137                   0.603053 0.369225 0.369225 0.603053                1.89e-05 1.40805e-05 6.9195e-06
right_ankle_roll_link     right_ankle_pitch_link    0 0 -0.017558               1 0 0 0                                       0.608     0.026505 0 -0.016425                   0.000481092 0.728482 0.000618967 0.685065          0.00167218 0.0016161 0.000217621
waist_yaw_link            pelvis                    0 0 0                       1 0 0 0                                       0.214     0.003494 0.000233 0.018034             0.289697 0.591001 -0.337795 0.672821               0.000163531 0.000107714 0.000102205
waist_roll_link           waist_yaw_link            -0.0039635 0 0.044          1 0 0 0                                       0.086     0 2.3e-05 0                            0.5 0.5 -0.5 0.5                                   8.245e-06 7.079e-06 6.339e-06
torso_link                waist_roll_link           0 0 0                       1 0 0 0                                       7.818     0.00203158 0.000339683 0.184568        0.999803 -6.03319e-05 0.0198256 0.00131986         0.121847 0.109825 0.0273735
left_shoulder_pitch_link  torso_link                0.0039563 0.10022 0.24778   0.990264 0.139201 1.38722e-05 -9.86868e-05    0.718     0 0.035892 -0.011628                   0.654152 0.0130458 -0.326267 0.68225               0.000465864 0.000432842 0.000406394
left_shoulder_roll_link   left_shoulder_pitch_link  0 0.038 -0.013831           0.990268 -0.139172 0 0                        0.643     -0.000227 0.00727 -0.063243            0.701256 -0.0196223 -0.00710317 0.712604           0.000691311 0.000618011 0.000388977
left_shoulder_yaw_link    left_shoulder_roll_link   0 0.00624 -0.1032           1 0 0 0                                       0.734     0.010773 -0.002949 -0.072009           0.716879 -0.0964829 -0.0679942 0.687134            0.00106187 0.00103217 0.000400661
left_elbow_link           left_shoulder_yaw_link    0.015783 0 -0.080518        1 0 0 0                                       0.6       0.064956 0.004454 -0.010062            0.541765 0.636132 0.388821 0.388129                0.000443035 0.000421612 0.000259353
left_wrist_roll_link      left_elbow_link           0.1 0.00188791 -0.01        1 0 0 0                                       0.085445  0.0171394 0.000537591 4.8864e-07       0.575338 0.411667 -0.574906 0.411094               5.48211e-05 4.96646e-05 3.57798e-05
left_wrist_pitch_link     left_wrist_roll_link      0.038 0 0                   1 0 0 0                                       0.48405   0.0229999 -0.00111685 -0.00111658      0.249998 0.661363 0.293036 0.643608                0.000430353 0.000429873 0.000164648
left_wrist_yaw_link       left_wrist_pitch_link     0.046 0 0                   1 0 0 0                                       0.254576  0.0708244 0.000191745 0.00161742       0.510571 0.526295 0.468078 0.493188                0.000646113 0.000559993 0.000147566
right_shoulder_pitch_link torso_link                0.0039563 -0.10021 0.24778  0.990264 -0.139201 1.38722e-05 9.86868e-05    0.718     0 -0.035892 -0.011628                  0.68225 -0.326267 0.0130458 0.654152               0.000465864 0.000432842 0.000406394
right_shoulder_roll_link  right_shoulder_pitch_link 0 -0.038 -0.013831          0.990268 0.139172 0 0                         0.643     -0.000227 -0.00727 -0.063243           0.712604 -0.00710317 -0.0196223 0.701256           0.000691311 0.000618011 0.000388977
right_shoulder_yaw_link   right_shoulder_roll_link  0 -0.00624 -0.1032          1 0 0 0                                       0.734     0.010773 0.002949 -0.072009            0.687134 -0.0679942 -0.0964829 0.716879            0.00106187 0.00103217 0.000400661
right_elbow_link          right_shoulder_yaw_link   0.015783 0 -0.080518        1 0 0 0                                       0.6       0.064956 -0.004454 -0.010062           0.388129 0.388821 0.636132 0.541765                0.000443035 0.000421612 0.000259353
right_wrist_roll_link     right_elbow_link          0.1 -0.00188791 -0.01       1 0 0 0                                       0.085445  0.0171394 -0.000537591 4.8864e-07      0.411667 0.575338 -0.411094 0.574906               5.48211e-05 4.96646e-05 3.57798e-05
right_wrist_pitch_link    right_wrist_roll_link     0.038 0 0                   1 0 0 0                                       0.48405   0.0229999 0.00111685 -0.00111658       0.643608 0.293036 0.661363 0.249998                0.000430353 0.000429873 0.000164648
right_wrist_yaw_link      right_wrist_pitch_link    0.046 0 0                   1 0 0 0                                       0.254576  0.0708244 -0.000191745 0.00161742      0.493188 0.468078 0.526295 0.510571                0.000646113 0.000559993 0.000147566
"""

# joint, axis, range (rad), motor, straight pose, default pose, soft range, action scale
JOINTS = """
left_hip_pitch         0 1 0  -2.5307 2.8798       7520-14  -0.1  -0.312  -2.2602 2.6093       0.547546
left_hip_roll          1 0 0  -0.5236 2.9671       7520-22  0     0       -0.34907 2.7926      0.350661
left_hip_yaw           0 0 1  -2.7576 2.7576       7520-14  0     0       -2.4818 2.4818       0.547546
left_knee              0 1 0  -0.087267 2.8798     7520-22  0.3   0.669   0.061086 2.7314      0.350661
left_ankle_pitch       0 1 0  -0.87267 0.5236      2x5020   -0.2  -0.363  -0.80286 0.45379     0.438577
left_ankle_roll        1 0 0  -0.2618 0.2618       2x5020   0     0       -0.23562 0.23562     0.438577
right_hip_pitch        0 1 0  -2.5307 2.8798       7520-14  -0.1  -0.312  -2.2602 2.6093       0.547546
right_hip_roll         1 0 0  -2.9671 0.5236       7520-22  0     0       -2.7926 0.34907      0.350661
right_hip_yaw          0 0 1  -2.7576 2.7576       7520-14  0     0       -2.4818 2.4818       0.547546
right_knee             0 1 0  -0.087267 2.8798     7520-22  0.3   0.669   0.061086 2.7314      0.350661
right_ankle_pitch      0 1 0  -0.87267 0.5236      2x5020   -0.2  -0.363  -0.80286 0.45379     0.438577
right_ankle_roll       1 0 0  -0.2618 0.2618       2x5020   0     0       -0.23562 0.23562     0.438577
waist_yaw              0 0 1  -2.618 2.618         7520-14  0     0       -2.3562 2.3562       0.547546
waist_roll             1 0 0  -0.52 0.52           2x5020   0     0       -0.468 0.468         0.438577
waist_pitch            0 1 0  -0.52 0.52           2x5020   0     0       -0.468 0.468         0.438577
left_shoulder_pitch    0 1 0  -3.0892 2.6704       5020     0.2   0.2     -2.8012 2.3824       0.438577
left_shoulder_roll     1 0 0  -1.5882 2.2515       5020     0.2   0.2     -1.3962 2.0595       0.438577
left_shoulder_yaw      0 0 1  -2.618 2.618         5020     0     0       -2.3562 2.3562       0.438577
left_elbow             0 1 0  -1.0472 2.0944       5020     1.28  0.6     -0.89012 1.9373      0.438577
left_wrist_roll        1 0 0  -1.97222 1.97222     5020     0     0       -1.775 1.775         0.438577
left_wrist_pitch       0 1 0  -1.61443 1.61443     4010     0     0       -1.453 1.453         0.074501
left_wrist_yaw         0 0 1  -1.61443 1.61443     4010     0     0       -1.453 1.453         0.074501
right_shoulder_pitch   0 1 0  -3.0892 2.6704       5020     0.2   0.2     -2.8012 2.3824       0.438577
right_shoulder_roll    1 0 0  -2.2515 1.5882       5020     -0.2  -0.2    -2.0595 1.3962       0.438577
right_shoulder_yaw     0 0 1  -2.618 2.618         5020     0     0       -2.3562 2.3562       0.438577
right_elbow            0 1 0  -1.0472 2.0944       5020     1.28  0.6     -0.89012 1.9373      0.438577
right_wrist_roll       1 0 0  -1.97222 1.97222     5020     0     0       -1.775 1.775         0.438577
right_wrist_pitch      0 1 0  -1.61443 1.61443     4010     0     0       -1.453 1.453         0.074501
right_wrist_yaw        0 0 1  -1.61443 1.61443     4010     0     0       -1.453 1.453         0.074501
"""

# motor: armature, kp, kd, effort (Nm)
MOTORS = {
    "7520-14": (0.01017752004, 40.179239, 2.557890, 88.0),
    "7520-22": (0.025101925, 99.098428, 6.308802, 139.0),
    "2x5020": (0.00721945, 28.501246, 1.814446, 50.0),
    "5020": (0.003609725, 14.250623, 0.907223, 25.0),
    "4010": (0.00425, 16.778327, 1.068142, 5.0),
}
# motor: inertias of rotor, first and second gear (kg m^2), gear ratios, how many motors
GEARS = {
    "5020": ((1.39e-5, 1.7e-6, 1.69e-5), (1 + 46 / 18, 1 + 56 / 16), 1),
    "2x5020": ((1.39e-5, 1.7e-6, 1.69e-5), (1 + 46 / 18, 1 + 56 / 16), 2),
    "7520-14": ((4.89e-5, 9.8e-6, 5.33e-5), (4.5, 1 + 48 / 22), 1),
    "7520-22": ((4.89e-5, 1.09e-5, 7.38e-5), (4.5, 5.0), 1),
    "4010": ((6.8e-6, 0.0, 0.0), (5.0, 5.0), 1),
}

# geom, body, type, radius, pos or both ends of a capsule
GEOMS = """
pelvis_collision                 pelvis                    sphere   0.07   0 0 -0.08
left_hip_collision               left_hip_roll_link        capsule  0.06   0.02 0 0 0.02 0 -0.08
left_thigh_collision             left_hip_yaw_link         capsule  0.055  0 0 -0.03 -0.06 0 -0.17
left_shin_collision              left_knee_link            capsule  0.045  0.01 0 0 0.01 0 -0.15
left_linkage_brace_collision     left_knee_link            capsule  0.03   0.01 0 -0.2 0.01 0 -0.28
left_foot1_collision             left_ankle_roll_link      capsule  0.01   0.1 -0.026 -0.025 0.05 -0.027 -0.025
left_foot2_collision             left_ankle_roll_link      capsule  0.01   -0.044 -0.018 -0.025 0.123 -0.018 -0.025
left_foot3_collision             left_ankle_roll_link      capsule  0.01   -0.052 -0.01 -0.025 0.13 -0.01 -0.025
left_foot4_collision             left_ankle_roll_link      capsule  0.01   -0.054 0 -0.025 0.132 0 -0.025
left_foot5_collision             left_ankle_roll_link      capsule  0.01   -0.052 0.01 -0.025 0.13 0.01 -0.025
left_foot6_collision             left_ankle_roll_link      capsule  0.01   -0.044 0.018 -0.025 0.123 0.018 -0.025
left_foot7_collision             left_ankle_roll_link      capsule  0.01   0.1 0.026 -0.025 0.05 0.026 -0.025
right_hip_collision              right_hip_roll_link       capsule  0.06   0.02 0 0 0.02 0 -0.08
right_thigh_collision            right_hip_yaw_link        capsule  0.055  0 0 -0.03 -0.06 0 -0.17
right_shin_collision             right_knee_link           capsule  0.045  0.01 0 0 0.01 0 -0.15
right_linkage_brace_collision    right_knee_link           capsule  0.03   0.01 0 -0.2 0.01 0 -0.28
right_foot1_collision            right_ankle_roll_link     capsule  0.01   0.1 -0.026 -0.025 0.05 -0.026 -0.025
right_foot2_collision            right_ankle_roll_link     capsule  0.01   -0.044 -0.018 -0.025 0.123 -0.018 -0.025
right_foot3_collision            right_ankle_roll_link     capsule  0.01   -0.052 -0.01 -0.025 0.13 -0.01 -0.025
right_foot4_collision            right_ankle_roll_link     capsule  0.01   -0.054 0 -0.025 0.132 0 -0.025
right_foot5_collision            right_ankle_roll_link     capsule  0.01   -0.052 0.01 -0.025 0.13 0.01 -0.025
right_foot6_collision            right_ankle_roll_link     capsule  0.01   -0.044 0.018 -0.025 0.123 0.018 -0.025
right_foot7_collision            right_ankle_roll_link     capsule  0.01   0.1 0.026 -0.025 0.05 0.026 -0.025
torso_collision                  torso_link                capsule  0.09   0.01 0 0.08 0.01 0 0.2
head_collision                   torso_link                sphere   0.06   0 0 0.43
left_shoulder_yaw_collision      left_shoulder_yaw_link    capsule  0.035  0 0 -0.08 0 0 0.05
left_elbow_yaw_collision         left_elbow_link           capsule  0.035  -0.01 0 -0.01 0.08 0 -0.01
left_wrist_collision             left_wrist_pitch_link     capsule  0.035  -0.01 0 0 0.06 0 0
left_hand_collision              left_wrist_yaw_link       capsule  0.035  0.07 0 0 0.15 -0.02 0
right_shoulder_yaw_collision     right_shoulder_yaw_link   capsule  0.035  0 0 -0.08 0 0 0.05
right_elbow_yaw_collision        right_elbow_link          capsule  0.035  -0.01 0 -0.01 0.08 0 -0.01
right_wrist_collision            right_wrist_pitch_link    capsule  0.035  -0.01 0 0 0.06 0 0
right_hand_collision             right_wrist_yaw_link      capsule  0.035  0.07 0 0 0.15 0.02 0
"""

SITES = {  # body, position in it, position in the world at the default pose with the base at z 0.76
    "imu_in_pelvis": ("pelvis", (0.04525, 0, -0.08339), (0.04525, 0, 0.67661)),
    "left_foot": ("left_ankle_roll_link", (0.04, 0, -0.037), (0.038804, 0.118506, 0.001543)),
    "right_foot": ("right_ankle_roll_link", (0.04, 0, -0.037), (0.038804, -0.118506, 0.001543)),
    "imu_in_torso": ("torso_link", (-0.03959, -0.00224, 0.14792), (-0.043554, -0.00224, 0.95192)),
    "left_palm": ("left_wrist_yaw_link", (0.08, 0, 0), (0.15306, 0.226812, 0.679579)),
    "right_palm": ("right_wrist_yaw_link", (0.08, 0, 0), (0.15306, -0.226802, 0.679579)),
}
COM = (0.030594, 0.000082, 0.672409)
BIAS_NM = (
    *(-4.5066, -0.0613, 0.0251, 1.2503, -0.1540, 0.0000, -4.5066, 0.0613, -0.0251, 1.2503),
    *(-0.1540, -0.0000, 0.0000, 0.0264, -1.5672, -0.5465, 1.2688, 0.3577, -1.1903, -0.0027),
    *(-0.2739, 0.0358, -0.5465, -1.2688, -0.3577, -1.1903, 0.0027, -0.2739, -0.0358),
)
INERTIA = (
    *(33.3411, 33.3411, 33.3411, 3.77908, 3.44861, 0.573391),
    *(0.864443, 0.664864, 0.13975, 0.136571, 0.00999681, 0.00760658),
    *(0.864443, 0.664953, 0.139661, 0.136571, 0.00999681, 0.00760658),
    *(0.291706, 0.781675, 0.561584),
    *(0.178456, 0.135975, 0.0310302, 0.0380639, 0.00397609, 0.00905442, 0.0060871) * 2,
)
SUBTREE_MASSES = (
    33.341,
    *(7.186, 5.836, 4.316, 2.614, 0.682, 0.608) * 2,
    *(15.156, 14.942, 14.856),
    *(3.5191, 2.8011, 2.1581, 1.4241, 0.82407, 0.73863, 0.25458) * 2,
)
EXCLUDED = {
    ("left_elbow_link", "left_wrist_pitch_link"),
    ("right_elbow_link", "right_wrist_pitch_link"),
    ("pelvis", "left_hip_roll_link"),
    ("pelvis", "right_hip_roll_link"),
}
